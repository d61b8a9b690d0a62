"""Crashes: a run is killed (SIGKILL) at random moments, again and again, until it completes.

    python -m tests.simulated.crash --cases 100

Afterwards every chunk is exactly once in every export, ids and vectors are those of an undisturbed run, and no text was
encoded more often than the kills explain: what is not sealed when the kill comes is encoded again, and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder.api import run_and_report  # noqa: F401 - imported before the first fork, not after each
from ultimate_embedder.cli import main as main_of_cli
from ultimate_embedder.models import Encoder, TokenBatch
from ultimate_embedder.vectors import store

TEXTS = 400
KINDS: tuple[tuple[Architecture, str, str], ...] = (
    ("bert", "cpu", "fp32"),
    ("qwen3", "cpu", "fp32"),
    ("xlm-roberta", "simulated:2x64MiB", "fp32"),
    ("bert", "simulated:32MiB", "fp32"),
)


def _embed_slowly(arguments: list[str]) -> int:
    """The command line with small shards, sealed often, and a slow forward, so that kills meet every stage."""
    store.SHARD_ROWS, store.SHARD_SECONDS = 32, 0.05
    forward = Encoder.forward

    def slow(self: Encoder, batch: TokenBatch) -> Any:
        time.sleep(0.01)
        return forward(self, batch)

    Encoder.forward = slow  # type: ignore[method-assign]
    return main_of_cli(arguments)


def run_case(seed: int, most_kills: int = 12) -> int:
    """Kill a run until it is done, check what it made, and give the number of kills."""
    rng = random.Random(seed)
    architecture, devices, precision = KINDS[seed % len(KINDS)]
    model = _model(architecture)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        chunks = _write_chunks(root, seed)
        command = ["embed", str(chunks), "--output", str(root / "out"), "--export", "npy,parquet,jsonl,qdrant"]
        command += ["--models", str(model), "--devices", devices, "--precision", precision, "--quiet", "--json"]
        kills = encoded = 0
        while (summary := _run(command, rng, root / "out", may_kill=kills < most_kills)) is None:
            kills += 1
            encoded += _encoded(root / "out")
        encoded += summary["collections"][0]["chunks"]["newly_encoded"]
        _check(root / "out" / "c", chunks, str(model))
    texts = TEXTS - TEXTS // 10  # a tenth of the texts occurs twice
    # a batch that was stored may have been killed before its event was written: one a worker and kill
    assert encoded >= texts - kills * 2 * 64, f"{encoded} texts encoded, {kills} kills"
    # a kill loses at most an unsealed shard and the batches in flight on two devices
    assert encoded <= texts + kills * (32 + 3 * 64), f"{encoded} texts encoded, {kills} kills"
    return kills


def _run(command: list[str], rng: random.Random, output: Path, may_kill: bool) -> dict[str, Any] | None:
    """Run, and kill if it may be; the summary of a run that came to its end."""
    said = output.parent / "said.txt"
    before = _modified(output / "events.jsonl")
    child = _fork(lambda: _embed_slowly(command), said)
    if may_kill:
        # a kill before the run has begun would show nothing
        while not child.ended() and _modified(output / "events.jsonl") == before:
            time.sleep(0.01)
        until = time.monotonic() + rng.uniform(0.0, 1.5)
        while not child.ended() and time.monotonic() < until:
            time.sleep(0.01)
        if not child.ended():
            child.kill()
            return None
    assert child.wait() == 0, said.read_text()
    summary: dict[str, Any] = json.loads(said.read_text())
    return summary


class _Child:
    """A process of ours."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._status: int | None = None

    def ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status is not None

    def wait(self) -> int:
        while not self.ended():
            time.sleep(0.01)
        return self._status or 0

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self.wait()


def _fork(work: Callable[[], int], said: Path) -> _Child:
    """Run `work` in a copy of this process, which has imported everything and computed nothing."""
    if pid := os.fork():
        return _Child(pid)
    code = 1
    try:
        with open(said, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            file.write("\n")
            code = work()
    except BaseException:  # noqa: BLE001 - a child must never return into the parent's code
        said.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _encoded(output: Path) -> int:
    lines = (output / "events.jsonl").read_text("utf-8").splitlines()
    rows = 0
    for line in lines:
        with contextlib.suppress(ValueError):  # the kill may have torn the last line
            event = json.loads(line)
            rows += event["rows"] if event["event"] == "BatchEncoded" else 0
    return rows


def _check(folder: Path, chunks: Path, model: str) -> None:
    expected_ids, expected = _reference(chunks, model)
    vectors = np.load(folder / "embeddings.npy")
    table = pq.read_table(folder / "chunks.parquet")
    points = [json.loads(line) for line in (folder / "points.jsonl").read_text("utf-8").splitlines()]
    assert table.column("chunk_id").to_pylist() == expected_ids
    assert [point["payload"]["chunk_id"] for point in points] == expected_ids
    assert vectors.shape == expected.shape
    assert (vectors * expected).sum(1).min() > 0.99999
    assert np.array_equal(np.array([point["vector"] for point in points], np.float32), vectors)
    assert _edge_count(folder / "qdrant") == len(expected_ids)


def _edge_count(folder: Path) -> int:
    from qdrant_edge import CountRequest, EdgeShard

    shard = EdgeShard.load(str(folder))
    try:
        return int(shard.count(CountRequest(exact=True)))
    finally:
        shard.close()


def _reference(chunks: Path, model: str) -> tuple[list[str], np.ndarray]:
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "out"
        arguments = ["embed", str(chunks), "--output", str(output), "--models", model, "--devices", "cpu", "--quiet"]
        said = Path(temporary) / "said.txt"
        assert _fork(lambda: main_of_cli(arguments), said).wait() == 0, said.read_text()
        ids = pq.read_table(output / "c" / "chunks.parquet").column("chunk_id").to_pylist()
        return ids, np.load(output / "c" / "embeddings.npy")


@functools.cache
def _model(architecture: Architecture) -> Path:
    """Made in a child: torch's threads do not survive a fork, so that this process must not start any."""
    noted = Path(tempfile.mkdtemp()) / "path.txt"

    def make() -> int:
        noted.write_text(str(tiny_model(architecture, hidden=64, layers=3)))
        return 0

    assert _fork(make, noted.with_name("said.txt")).wait() == 0
    return Path(noted.read_text())


def _write_chunks(root: Path, seed: int) -> Path:
    rng = random.Random(seed)
    folder = root / "chunks" / "c"
    folder.mkdir(parents=True)
    texts = [f"text {number} " + "word " * rng.randint(1, 40) for number in range(TEXTS - TEXTS // 10)]
    texts += texts[: TEXTS // 10]
    records = [{"text": text, "metadata": {"chunk_id": f"id-{number}"}} for number, text in enumerate(texts)]
    half = len(records) // 2
    (folder / "a_chunks.json").write_text(json.dumps(records[:half]))
    (folder / "b_chunks.json").write_text(json.dumps(records[half:]))
    return root / "chunks"


def main() -> int:
    """Run many cases and say how they went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--kills", type=int, default=12, help="of one run, at most")
    options = parser.parse_args()
    failed = kills = 0
    for seed in range(options.cases):
        try:
            kills += run_case(seed, options.kills)
        except AssertionError as error:
            failed += 1
            print(f"FAILED seed {seed} ({KINDS[seed % len(KINDS)]}): {error}", flush=True)
        if (seed + 1) % 10 == 0:
            print(f"{seed + 1} cases, {kills} kills", flush=True)
    print(f"{options.cases - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
