"""Points per second of `upload`, against the tests' Qdrant server (Qdrant's protocol in front of Qdrant Edge).

    make bench-upload     # 100,000 points of 384 and of 1,024 dims; prints a table and writes build/bench/upload.json

The server is a process of its own, and so is each upload. Variants take turns, so that other load on the machine meets
all of them. `--before DIR` adds an earlier version of this project as a variant: the source tree of that version.
The server is written in Python and takes most of the time; `client CPU` is what the upload itself took.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import BUILD, ROOT, make_texts

DISTINCT_TEXTS = 5000
DIMS = (384, 1024)
UPLOAD = """
import json, sys, time
folder, url, name, options = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
try:
    from ultimate_embedder.export import make_upload_config, upload_points
    config = make_upload_config(folder, url, collection=name, **options)
    run = lambda: upload_points(config, lambda event: None)
except ImportError:
    from pathlib import Path
    from ultimate_embedder.export import upload
    run = lambda: upload(Path(folder), url, lambda event: None, name)
started, before = time.perf_counter(), time.process_time()
run()
print(json.dumps([time.perf_counter() - started, time.process_time() - before]))
"""


@dataclass(frozen=True)
class Variant:
    """A way to upload."""

    name: str
    source: Path
    options: dict[str, object]


@dataclass(frozen=True)
class Result:
    """Medians of one variant."""

    variant: str
    dim: int
    points: int
    seconds: float
    cpu_seconds: float
    points_per_second: float
    every_seconds: tuple[float, ...]


def write_points(root: Path, count: int, dim: int) -> Path:
    """A collection as embed writes it, with random vectors."""
    from tests.support.points import make_points

    from ultimate_embedder.export import write_exports

    texts = make_texts(DISTINCT_TEXTS)
    records = [
        {"text": texts[number % len(texts)], "metadata": {"chunk_id": f"c-{number:07d}", "page": number % 50}}
        for number in range(count)
    ]
    write_exports(make_points(root, records, dim=dim), root / "docs", ("parquet",), lambda event: None)
    return root / "docs"


@contextlib.contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """The server in a process of its own: its address and its gRPC port."""
    command = [sys.executable, "-m", "tests.support.qdrant_server", "--grpc"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=_environment(ROOT)) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), int(process.stdout.readline())
        finally:
            process.kill()


def measure(variant: Variant, folder: Path, url: str) -> tuple[float, float]:
    """Seconds of one upload into a new collection, and of its process."""
    command = [sys.executable, "-c", UPLOAD, str(folder), url, "bench", json.dumps(variant.options)]
    answer = subprocess.run(
        command, env=_environment(variant.source), stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    urllib.request.urlopen(urllib.request.Request(f"{url}/collections/bench", method="DELETE")).close()
    seconds, cpu_seconds = json.loads(answer)
    return seconds, cpu_seconds


def medians(taken: dict[tuple[int, str], list[tuple[float, float]]], points: int) -> list[Result]:
    """The medians of what was measured so far."""
    results = []
    for (dim, name), times in taken.items():
        seconds, cpu_seconds = (statistics.median(values) for values in zip(*times, strict=True))
        every = tuple(round(each[0], 2) for each in times)
        results.append(Result(name, dim, points, seconds, cpu_seconds, points / seconds, every))
    return results


def show(results: Sequence[Result]) -> None:
    """Print a table; the speedup is the median over the rounds, against the first variant of each."""
    print(f"{'dims':>6}  {'variant':24}{'points/s':>10}{'seconds':>9}{'client CPU s':>14}{'speedup':>9}")
    for each in results:
        first = next(other for other in results if other.dim == each.dim)
        pairs = zip(first.every_seconds, each.every_seconds, strict=False)  # a round may not be complete
        faster = statistics.median(before / after for before, after in pairs)
        print(
            f"{each.dim:>6}  {each.variant:24}{each.points_per_second:>10,.0f}{each.seconds:>9.1f}"
            f"{each.cpu_seconds:>14.1f}{faster:>8.2f}x"
        )


def _environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(source / "src"), str(source)])}


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path, help="source tree of an earlier version")
    parser.add_argument("--variants", nargs="+", help="only these, by name")
    options = parser.parse_args()
    taken: dict[tuple[int, str], list[tuple[float, float]]] = {}
    BUILD.mkdir(parents=True, exist_ok=True)
    with serving() as (url, grpc_port), tempfile.TemporaryDirectory() as scratch:
        variants = [
            *([Variant("before", options.before, {})] if options.before else []),
            Variant("one request at a time", ROOT, {"parallel": 1, "batch_size": 128}),
            Variant("default", ROOT, {}),
            Variant("gRPC", ROOT, {"grpc_port": grpc_port}),
        ]
        folders = {dim: write_points(Path(scratch) / str(dim), options.points, dim) for dim in options.dims}
        for number, dim, each in itertools.product(range(options.rounds), options.dims, variants):
            if options.variants and each.name not in options.variants:
                continue
            taken.setdefault((dim, each.name), []).append(measure(each, folders[dim], url))
            seconds = taken[dim, each.name][-1][0]
            print(f"round {number + 1}, {dim} dims, {each.name}: {seconds:.1f} s", file=sys.stderr, flush=True)
            results = medians(taken, options.points)
            (BUILD / "upload.json").write_text(json.dumps([asdict(result) for result in results], indent=2))
    show(medians(taken, options.points))


if __name__ == "__main__":
    main()
