"""Two models in each mode, and an exclusive run against the sum of two single ones.

Prints a table and writes build/bench/ensemble.json. all-MiniLM-L6-v2 and a copy of it stand for two models, unless
--second names another; so they share their token ids, which is a hundredth of the time. Each run is a process of its own, rounds are interleaved, and what is compared is the time of the passes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path

from benchmarks.measure import BUILD, machine, make_texts, spread, watch, write_chunk_folder

RUN = """
import json, shutil, sys
from ultimate_embedder import embed
chunks, output, devices, mode, *models = sys.argv[1:]
summary = embed(chunks, output, models=models, mode=mode, devices=devices, precision="fp32", exports="npy", quiet=True)
(done,) = summary.collections
wall = max(p.seconds for p in done.passes) if mode == "simultaneous" else sum(p.seconds for p in done.passes)
print(json.dumps({"seconds": wall, "tokens_by_device": [p.tokens_by_device for p in done.passes]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--devices", default="cpu", help="for example simulated:2x15GiB")
    parser.add_argument("--second", type=Path, help="folder of another model (default: a copy of the first)")
    options = parser.parse_args()
    from benchmarks.peers import model_folder

    first = model_folder()
    second = options.second or BUILD / "second-model"
    if not second.exists():
        shutil.copytree(first, second)
    chunks = write_chunk_folder(make_texts(options.texts), BUILD / "ensemble-chunks")
    cases = {
        "first alone": ("single", [first]),
        "second alone": ("single", [second]),
        **{mode: (mode, [first, second]) for mode in ("exclusive", "sequential", "simultaneous")},
    }
    runs: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, (mode, models) in cases.items():
            shutil.rmtree(BUILD / "out", ignore_errors=True)
            command = [
                sys.executable,
                "-c",
                RUN,
                str(chunks),
                str(BUILD / "out"),
                options.devices,
                mode,
                *map(str, models),
            ]
            runs[name].append(watch(command).answer["seconds"])
    alone = [one + other for one, other in zip(runs["first alone"], runs["second alone"], strict=True)]
    ratio = statistics.median(runs["exclusive"]) / statistics.median(alone)
    result = {
        "machine": machine(),
        "texts": options.texts,
        "devices": options.devices,
        "runs": runs,
        "exclusive_over_singles": ratio,
    }
    (BUILD / "ensemble.json").write_text(json.dumps(result, indent=2))
    print(
        f"{options.texts} texts, two models, {options.devices}, {options.rounds} rounds, interleaved; seconds, median and range"
    )
    for name, seconds in runs.items():
        print(f"{name:16}{spread(seconds):>28}")
    print(f"{'sum of singles':16}{spread(alone):>28}")
    print(f"exclusive / sum of singles: {ratio:.3f}")


if __name__ == "__main__":
    main()
