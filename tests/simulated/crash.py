"""Crashes: a run is killed (SIGKILL) at random moments, again and again, until it completes.

    python -m tests.simulated.crash --kills 1000

After some of the kills a file of the output is damaged as well, as a power failure or a bad disk does it. Afterwards
every chunk is exactly once in every export, ids and vectors are those of an undisturbed run, and no text was encoded
more often than kills and damage explain: what is not sealed when the kill comes is encoded again, and what was damaged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.forked import fork, model_of, splade_model
from tests.support.tiny_models import Architecture
from ultimate_embedder.api import run_and_report  # noqa: F401 - imported before the first fork, not after each
from ultimate_embedder.cli import main as main_of_cli
from ultimate_embedder.models import Encoder, TokenBatch
from ultimate_embedder.vectors import store

TEXTS = 400
DAMAGED_SHARE = 0.25  # of the kills: a file is damaged too
PER_PROCESS = 5  # cases
MOST_FAILURES = 20
POOLS = ("--max-tokens", "64", "--overlong", "pool")  # then most texts are several rows
KINDS: tuple[tuple[Architecture, int, str, tuple[str, ...]], ...] = (  # architecture, models of it, devices, options
    ("bert", 1, "cpu", ()),
    ("qwen3", 1, "cpu", POOLS),
    ("xlm-roberta", 1, "simulated:2x64MiB", ()),
    ("bert", 2, "cpu", ()),  # they share their token ids
    ("bert", 1, "simulated:32MiB", ()),
    ("bert", 1, "simulated:64MiB", ("--sparse", "bm25,splade={splade}")),
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


@dataclass(frozen=True)
class Crashes:
    """What was done to runs until they completed."""

    kills: int = 0
    damages: int = 0
    failures: tuple[str, ...] = ()

    def __add__(self, other: Crashes) -> Crashes:
        return Crashes(self.kills + other.kills, self.damages + other.damages, (*self.failures, *other.failures))


def run_case(seed: int, most_kills: int = 12) -> Crashes:
    """Kill a run until it is done, check what it made, and give what was done to it."""
    rng = random.Random(seed)
    architecture, count, devices, more = KINDS[seed % len(KINDS)]
    models = ",".join(str(model_of(architecture, 3 + number)) for number in range(count))
    more = tuple(word.format(splade=splade_model()) if "{splade}" in word else word for word in more)
    ways = ["--models", models, "--precision", "fp32", "--fusion", "weighted_average", "--mode", "sequential", *more]
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        chunks = _write_chunks(root, seed)
        command = ["embed", str(chunks), "--output", str(root / "out"), "--export", "npy,parquet,jsonl,qdrant"]
        command += [*ways, "--devices", devices, "--quiet", "--json"]
        kills = damages = encoded = 0
        while (summary := _run(command, rng, root / "out", may_kill=kills < most_kills)) is None:
            kills += 1
            encoded += _encoded(root / "out")
            damages += rng.random() < DAMAGED_SHARE and _damage(root / "out", rng)
        encoded += sum(each["encoded_texts"] for each in summary["collections"][0]["passes"])
        _check(root / "out" / "c", chunks, ways)
    passes = len(summary["collections"][0]["passes"])
    texts = passes * (TEXTS - TEXTS // 10)  # a tenth of the texts occurs twice
    # a batch that was stored may have been killed before its event was written: one a worker and kill
    assert damages or encoded >= texts - kills * 2 * 64, f"{encoded} texts encoded, {kills} kills"
    # a kill loses at most an unsealed shard and the batches in flight on two devices; damage may cost a pass
    most = texts * (1 + damages) + kills * (32 + 3 * 64 + (TEXTS if passes > count else 0))  # words are counted at once
    assert encoded <= most, f"{encoded} texts encoded, {kills} kills, {damages} files damaged"
    return Crashes(kills, damages)


def _damage(output: Path, rng: random.Random) -> bool:
    """Damage one file of the output; False if there is none."""
    files = sorted(path for path in output.rglob("*") if path.is_file() and path.stat().st_size)
    if not files:
        return False
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    way = rng.choice(("truncated", "zeroed", "flipped"))
    if way == "truncated":
        content = content[:at]
    elif way == "zeroed":  # what was written and not synced when the power failed
        content[at:] = bytes(len(content) - at)
    else:
        content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return True


def _run(command: list[str], rng: random.Random, output: Path, may_kill: bool) -> dict[str, Any] | None:
    """Run, and kill if it may be; the summary of a run that came to its end."""
    said = output.parent / "said.txt"
    before = _modified(output / "events.jsonl")
    child = fork(lambda: _embed_slowly(command), said)
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


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _encoded(output: Path) -> int:
    lines = (output / "events.jsonl").read_bytes().splitlines()
    texts = 0
    for line in lines:
        with contextlib.suppress(ValueError):  # the kill may have torn the last line
            event = json.loads(line)
            texts += event["texts"] if event["event"] in ("BatchEncoded", "BatchesEncoded") else 0
    return texts


def _check(folder: Path, chunks: Path, ways: list[str]) -> None:
    reference, expected = _reference(chunks, ways)
    vectors = np.load(folder / "embeddings.npy")
    table = pq.read_table(folder / "chunks.parquet")
    points = [json.loads(line) for line in (folder / "points.jsonl").read_text("utf-8").splitlines()]
    expected_ids = reference.column("chunk_id").to_pylist()
    assert table.column("chunk_id").to_pylist() == expected_ids
    assert [point["payload"]["chunk_id"] for point in points] == expected_ids
    assert vectors.shape == expected.shape
    assert (vectors * expected).sum(1).min() > 0.99999
    dense = [point["vector"][""] if isinstance(point["vector"], dict) else point["vector"] for point in points]
    assert np.array_equal(np.array(dense, np.float32), vectors)
    for name in (name.removesuffix("_indices") for name in reference.column_names if name.endswith("_indices")):
        _check_sparse(_sparse(table, name), _sparse(reference, name))
    assert _edge_count(folder / "qdrant") == len(expected_ids)


def _sparse(table: pa.Table, name: str) -> list[dict[int, float]]:
    columns = (table.column(f"{name}{ending}").to_pylist() for ending in ("_indices", "_values"))
    return [dict(zip(*row, strict=True)) for row in zip(*columns, strict=True)]


def _check_sparse(found: list[dict[int, float]], expected: list[dict[int, float]]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert all(abs(ours.get(index, 0) - theirs.get(index, 0)) < 1e-4 for index in ours.keys() | theirs.keys())


def _edge_count(folder: Path) -> int:
    from qdrant_edge import CountRequest, EdgeShard

    shard = EdgeShard.load(str(folder))
    try:
        return int(shard.count(CountRequest(exact=True)))
    finally:
        shard.close()


def _reference(chunks: Path, ways: list[str]) -> tuple[pa.Table, np.ndarray]:
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "out"
        arguments = ["embed", str(chunks), "--output", str(output), *ways, "--devices", "cpu", "--quiet"]
        said = Path(temporary) / "said.txt"
        assert fork(lambda: main_of_cli(arguments), said).wait() == 0, said.read_text()
        return pq.read_table(output / "c" / "chunks.parquet"), np.load(output / "c" / "embeddings.npy")


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


def run_cases(seeds: range, most_kills: int) -> Crashes:
    """Run cases in this process, one after the other."""
    done = Crashes()
    for seed in seeds:
        try:
            done += run_case(seed, most_kills)
        except AssertionError as error:
            done += Crashes(failures=(f"seed {seed} ({KINDS[seed % len(KINDS)]}): {error}",))
    return done


def run_in_process(seeds: range, most_kills: int) -> Crashes:
    """Run cases in a process of their own."""
    words = ["--seeds", f"{seeds.start}:{seeds.stop}", "--most-kills", str(most_kills)]
    command = [sys.executable, "-m", "tests.simulated.crash", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Crashes(failures=tuple(f"seed {seed}: its process failed: {done.stderr[-400:]}" for seed in seeds))
    told = json.loads(done.stdout.splitlines()[-1])
    return Crashes(told["kills"], told["damages"], tuple(told["failures"]))


def main() -> int:
    """Run cases until there were enough kills, and say how they went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="in all, at least")
    parser.add_argument("--most-kills", type=int, default=12, help="of one run")
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--seeds", help="START:STOP: run these here, and print a line of JSON")
    options = parser.parse_args()
    if options.seeds:
        print(json.dumps(asdict(run_cases(range(*map(int, options.seeds.split(":"))), options.most_kills))))
        return 0
    started, done, cases = time.monotonic(), Crashes(), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        while done.kills < options.kills and len(done.failures) < MOST_FAILURES:
            starts = [options.first + cases + job * PER_PROCESS for job in range(options.jobs)]
            parts = [range(start, start + PER_PROCESS) for start in starts]
            for outcome in pool.map(lambda part: run_in_process(part, options.most_kills), parts):
                done += outcome
                print("".join(f"FAILED {failure}\n" for failure in outcome.failures), end="")
            cases += sum(map(len, parts))
            seconds = time.monotonic() - started
            print(f"{cases} cases, {done.kills} kills, {done.damages} files damaged in {seconds:.0f} s", flush=True)
    print(f"{cases - len(done.failures)} passed, {len(done.failures)} failed")
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(main())
