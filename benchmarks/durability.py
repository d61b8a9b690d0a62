"""The cost of durability: the same run with the store on disk and with a store that writes nothing, interleaved.

make durability      # all-MiniLM-L6-v2 on the CPU; prints medians and writes build/durability.json
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from ultimate_embedder import embed
from ultimate_embedder.vectors import VectorStore

WORDS = [f"word{number}" for number in range(3000)]


def forget(self: VectorStore) -> None:
    """Stand in for `seal`: keep what is pending in memory and write nothing."""
    if self._pending:
        self._kept = [*getattr(self, "_kept", []), np.concatenate(self._pending)]  # type: ignore[attr-defined]
        self._pending, self._pending_rows = [], 0


def encode_seconds(chunks: Path, folder: Path) -> float:
    """Time of the pass itself, without loading, and without exports."""
    started = time.perf_counter()
    summary = embed(chunks, folder, devices="cpu", exports=[], quiet=True)
    passes = summary.collections[0].passes
    return passes[0].seconds if passes else time.perf_counter() - started


def main() -> None:
    """Rounds of both, one after the other, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("build/durability.json"))
    options = parser.parse_args()
    rng = random.Random(0)
    seal = VectorStore.seal
    seconds: dict[str, list[float]] = {"durable": [], "nothing written": []}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "chunks").mkdir()
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(10, 60))) for _ in range(options.texts)]
        (root / "chunks" / "g_chunks.json").write_text(json.dumps(texts))
        for number in range(options.rounds + 1):  # the first round only warms up
            for kind, method in (("durable", seal), ("nothing written", forget)):
                VectorStore.seal = method  # type: ignore[method-assign]
                took = encode_seconds(root / "chunks", root / f"{kind}-{number}")
                if number:
                    seconds[kind].append(took)
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    overhead = medians["durable"] / medians["nothing written"] - 1
    for kind, values in seconds.items():
        print(f"{kind:16} median {medians[kind]:.2f} s of {', '.join(f'{value:.2f}' for value in values)}")
    print(f"overhead of durability: {overhead:+.1%}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"seconds": seconds, "overhead": overhead}, indent=2) + "\n")


if __name__ == "__main__":
    main()
