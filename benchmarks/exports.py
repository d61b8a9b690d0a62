"""How long exports take after encoding: each by itself, and all that a run writes by default.

    make bench-exports    # 10,000 and 100,000 points of 384 dims; prints a table and writes build/bench/exports.json

Vectors are random: nothing is encoded. Chunks have 600 to 1,200 characters and seven fields of metadata. Each export is a
process of its own, started after chunks and vectors are there; what is timed is `write_exports` alone. "shard begun
before" is all of them as a run has them, whose shard has got its payloads while texts were encoded. Variants take
turns, so that other load on the machine meets all of them. `--before DIR` adds an earlier version of this project: the
source tree of that version. `CPU s` has the processes that write a shard, too (all of
their work, also what was done before), `MB` (peak memory) has not; `fsync s` is what threads wait for the disk.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import BUILD, ROOT, machine, spread

DIM = 384
POINTS = (10_000, 100_000)
ALL = "all together"
BEGUN = "shard begun before"
KINDS = ("npy", "parquet", "qdrant")
NOW, BEFORE = "now", "before"
WRITE = """
import json, os, resource, sys, time
from contextlib import ExitStack
from pathlib import Path
import numpy as np
from tests.support.points import random_vectors
from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.export import Points, write_exports

root, kinds, dim, begun = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), sys.argv[4] == "begun"
facts = json.loads((root / "table.json").read_text())
table = ChunkTable(root / ".chunks.arrow.partial", np.load(root / "keys.npy"), facts["starts"], facts["digest"])
points = Points("docs", "docs__model", table, random_vectors(root, table.keys[:0], dim=dim))  # those that are stored
waited, sync = [], os.fsync

def timed(descriptor):
    started = time.perf_counter()
    sync(descriptor)
    waited.append(time.perf_counter() - started)

os.fsync = timed
stack, options = ExitStack(), {}
if begun:
    from ultimate_embedder.export import begin_exports

    drafts = stack.enter_context(begin_exports("docs", table, root / "exports", kinds, print, points.stop))
    drafts["qdrant"]._draft._thread.join()  # encoding takes longer than that
    options["drafts"] = drafts
os.sync()  # what was written before is not waited for
before, started = os.times(), time.perf_counter()
write_exports(points, root / "exports", kinds, lambda event: None, **options)
seconds = time.perf_counter() - started
stack.close()
after = os.times()
print(json.dumps({
    "seconds": seconds,
    "cpu_s": sum(after[:4]) - sum(before[:4]),
    "fsync_s": sum(waited),
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
}))
"""


@dataclass
class Result:
    """What one variant took, in every round."""

    points: int
    export: str
    version: str
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    fsync_s: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)

    def add(self, measured: dict[str, float]) -> None:
        """Note one round."""
        for name, value in measured.items():
            getattr(self, name).append(round(value, 3))


def make_records(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Chunks of this project's own words, as a chunker of documentation writes them."""
    rng = random.Random(seed)
    words = re.findall(r"\S+", " ".join(path.read_text("utf-8") for path in sorted(ROOT.glob("docs/*.md")))) * 2
    records = []
    for number in range(count):
        start, length = rng.randrange(len(words) // 2), rng.randrange(100, 190)
        metadata = {
            "chunk_id": f"doc-{number // 20:05d}#{number % 20}",
            "title": " ".join(words[start : start + 4]),
            "source": f"docs/part-{number // 2000}/page-{number // 20:05d}.md",
            "page": number % 20,
            "headings": words[start : start + 2],
            "score": rng.random(),
            "language": "en",
        }
        records.append({"text": " ".join(words[start : start + length]), "metadata": metadata})
    return records


def prepare(root: Path, count: int) -> Path:
    """Chunks and vectors as they are after encoding."""
    import numpy as np
    from tests.support.points import make_points

    table = make_points(root, make_records(count), dim=DIM)._table
    np.save(root / "keys.npy", table.keys)
    (root / "table.json").write_text(json.dumps({"starts": table._starts, "digest": table.digest}))
    return root


def measure(root: Path, export: str, source: Path) -> dict[str, float]:
    """Write these exports anew, in a process of their own."""
    shutil.rmtree(root / "exports", ignore_errors=True)
    kinds = ",".join(KINDS) if export in (ALL, BEGUN) else export
    command = [sys.executable, "-c", WRITE, str(root), kinds, str(DIM), "begun" if export == BEGUN else ""]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source / "src"), str(source)])}
    answer = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def show(results: Sequence[Result]) -> None:
    """Print a table: medians, and the range of the seconds."""
    print(f"{'points':>9}  {'export':19}{'version':9}{'seconds':>26}{'CPU s':>8}{'fsync s':>9}{'MB':>6}")
    for each in results:
        print(
            f"{each.points:>9,}  {each.export:19}{each.version:9}{spread(each.seconds):>26}{median(each.cpu_s):>8.2f}"
            f"{median(each.fsync_s):>9.2f}{median(each.peak_mb):>6.0f}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="+", default=POINTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exports", nargs="+", choices=[*KINDS, ALL, BEGUN], default=[*KINDS, ALL, BEGUN])
    parser.add_argument("--before", type=Path, help="source tree of an earlier version")
    parser.add_argument("--folder", type=Path, help="where to write: on the disk that is to be measured")
    parser.add_argument("--json", type=Path, default=BUILD / "exports.json")
    options = parser.parse_args(arguments)
    sources = {**({BEFORE: options.before.resolve()} if options.before else {}), NOW: ROOT}
    variants = [
        (count, export, version)
        for count, export, version in itertools.product(options.points, options.exports, sources)
        if (export, version) != (BEGUN, BEFORE)  # there was no such thing
    ]
    results = {variant: Result(*variant) for variant in variants}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        roots = {count: prepare(Path(scratch) / str(count), count) for count in options.points}
        for number, variant in itertools.product(range(options.rounds), variants):
            count, export, version = variant
            results[variant].add(measure(roots[count], export, sources[version]))
            said = f"round {number + 1}, {count:,} points, {export}, {version}: {results[variant].seconds[-1]:.2f} s"
            print(said, file=sys.stderr, flush=True)
            done = [asdict(each) for each in results.values() if each.seconds]
            options.json.write_text(json.dumps({"machine": machine(), "dim": DIM, "results": done}, indent=2) + "\n")
    show(list(results.values()))


if __name__ == "__main__":
    main()
