"""What a Ray cluster costs and gives, on this machine: overhead, two nodes against one, and the driver's own limit.

    make bench-cluster        # prints tables and writes build/cluster.json

Overhead: the same texts on the same cores, by this machine's executor and by one Ray node, in turn, in processes of
their own; from the first forward to the last vector, as starting a cluster is paid once. Two nodes of one core are
measured against one such node in the same way. For the driver's limit nodes answer at once with vectors that were made
before, so that what is measured is everything the driver does: cut units, send them, take vectors, store them durably.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale import trivial_model, write_chunks
from ultimate_embedder.execution.cluster.node import Node, PassFacts
from ultimate_embedder.execution.cluster.shared_output import write_unit
from ultimate_embedder.execution.cluster.units import PassOrder, Unit, UnitResult
from ultimate_embedder.vectors import EncoderFacts

ROOT = Path(__file__).resolve().parents[1]


class InstantNode(Node):
    """Answers at once, with vectors that have nothing to do with the texts."""

    dim = int(os.environ.get("BENCHMARK_DIM", "384"))

    def begin(self, order: PassOrder) -> PassFacts:
        """Nothing is loaded."""
        vectors = np.random.default_rng(0).standard_normal((2048, self.dim)).astype(np.float32)
        self._vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self._order = order
        return PassFacts(EncoderFacts(256, ""), self.dim, ())

    def encode(self, unit: Unit) -> UnitResult:
        """As many vectors as there are texts."""
        rows = len(unit)
        result = UnitResult(unit.id, unit.keys, self._vectors[:rows], np.zeros(rows, bool), (), rows, 0.0)
        if self._order.store is None:
            return result
        return write_unit(result, Path(self._order.store), self._order.plan.identity)

    def finish(self) -> tuple[()]:
        """There is nothing to leave."""
        return ()


def encoding_seconds(output: Path) -> float:
    """From the first forward to the last batch that was told of."""
    began, ended = [], []
    for line in (output / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] in ("BatchEncoded", "BatchesEncoded"):
            began.append(event["began"])
            ended.append(event["timestamp"])
    return max(ended) - min(began)


def one_run(chunks: Path, output: Path, *options: str, cores: str | None = None) -> dict[str, float]:
    """A run in a process of its own, on these cores alone if they are given."""
    program = "import sys; from ultimate_embedder.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        program,
        "embed",
        str(chunks),
        "-o",
        str(output),
        "--export",
        "none",
        "-q",
        *options,
    ]
    started = time.perf_counter()
    pinned = ["taskset", "-c", cores, *command] if cores else command
    subprocess.run(pinned, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"encoding_s": encoding_seconds(output), "run_s": time.perf_counter() - started}


def compare(
    chunks: Path, ways: dict[str, tuple[str, ...]], rounds: int, root: Path, on_one_core: str | None = None
) -> dict[str, list[float]]:
    """Seconds of encoding of each way, in turn; one of them may have one core, driver included."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, options in ways.items():
            taken = one_run(chunks, root / f"{name}-{number}", *options, cores="0" if name == on_one_core else None)
            found[name].append(taken["encoding_s"])
            print(f"round {number + 1}, {name}: {taken['encoding_s']:.1f} s of {taken['run_s']:.1f} s", flush=True)
    return found


def measure_driver(count: int, dim: int, root: Path, *, shared: bool = False) -> dict[str, Any]:
    """Vectors per second that the driver takes in, and its memory, in this process."""
    import psutil

    from ultimate_embedder.events import PassFinished
    from ultimate_embedder.execution.cluster import ray_cluster
    from ultimate_embedder.options import make_config
    from ultimate_embedder.pipeline import run
    from ultimate_embedder.stop import StopSwitch

    ray_cluster.Node = InstantNode  # type: ignore[misc]
    chunks, output, model = root / f"chunks-{count}", root / f"out-{count}-{dim}-{shared}", root / "trivial"
    if not chunks.exists():
        (chunks / "c").mkdir(parents=True)
        write_chunks(chunks / "c", count)
    if not model.exists():
        trivial_model(model)
    peaks, over, finished = [0], threading.Event(), []
    process = psutil.Process()

    def sample() -> None:
        while not over.wait(0.1):
            peaks[0] = max(peaks[0], process.memory_info().rss)

    threading.Thread(target=sample, daemon=True).start()
    config = make_config(
        chunks,
        output,
        models=str(model),
        engine="ray",
        ray_address="local",
        ray_nodes=2,
        devices="cpu",
        exports="none",
        shared_output=shared,
    )
    run(config, lambda event: finished.append(event) if isinstance(event, PassFinished) else None, StopSwitch())
    over.set()
    seconds = finished[0].seconds
    return {
        "texts": count,
        "dim": dim,
        "shared_output": shared,
        "seconds": round(seconds, 2),
        "vectors_per_s": round(count / seconds),
        "peak_mb": round(peaks[0] / 1e6),
    }


def driver_in_process(count: int, dim: int, root: Path, *, shared: bool = False) -> dict[str, Any]:
    """The same in a process of its own, as a peak is a property of a process."""
    words = ["--driver", str(count), str(dim), str(root), *(["--shared-output"] if shared else [])]
    command = [sys.executable, "-m", "benchmarks.cluster", *words]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "BENCHMARK_DIM": str(dim), "PYTHONPATH": path},
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--driver", nargs=3, metavar=("COUNT", "DIM", "FOLDER"))
    parser.add_argument("--shared-output", action="store_true")
    parser.add_argument("--only", choices=("overhead", "nodes", "driver"))
    options = parser.parse_args()
    if options.driver:
        count, dim, folder = options.driver
        print(json.dumps(measure_driver(int(count), int(dim), Path(folder), shared=options.shared_output)))
        return
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        root = Path(folder)
        chunks = root / "chunks"
        (chunks / "c").mkdir(parents=True)
        write_chunks(chunks / "c", options.texts)
        cluster = ("--engine", "ray", "--ray-address", "local", "--devices", "cpu")
        if options.only in (None, "overhead"):
            ways = {"local": ("--devices", "cpu"), "ray": (*cluster, "--ray-nodes", "1")}
            result["overhead"] = summarize(compare(chunks, ways, options.rounds, root), "local", "ray")
        if options.only in (None, "nodes"):
            ways = {"one": (*cluster, "--ray-nodes", "1"), "two": (*cluster, "--ray-nodes", "2")}
            result["nodes"] = summarize(compare(chunks, ways, options.rounds, root, on_one_core="one"), "one", "two")
        if options.only in (None, "driver"):
            sizes = [(10_000, 384), (100_000, 384), (1_000_000, 384), (100_000, 1024)]
            result["driver"] = [driver_in_process(count, dim, root) for count, dim in sizes]
            result["driver"].append(driver_in_process(100_000, 384, root, shared=True))
    Path("build").mkdir(exist_ok=True)
    Path("build/cluster.json").write_text(json.dumps(result, indent=2))
    print(json.dumps(result))


def summarize(found: dict[str, list[float]], base: str, other: str) -> dict[str, Any]:
    """Medians, and the median of the ratios of each round."""
    ratios = [before / after for before, after in zip(found[base], found[other], strict=True)]
    return {
        "seconds": {name: [round(value, 2) for value in values] for name, values in found.items()},
        "median_s": {name: round(statistics.median(values), 2) for name, values in found.items()},
        f"{base}_over_{other}": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


if __name__ == "__main__":
    main()
