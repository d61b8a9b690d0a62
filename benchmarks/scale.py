"""How time and memory grow with the collection: generated chunks through a trivial encoder.

    make scale            # 1k, 10k and 100k chunks; prints a table and writes build/scale.json

The encoder is a BERT without layers, so that what is measured is everything around the forward.
Each size runs in a process of its own, as a peak is a property of a process.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

FILE_CHUNKS = 5000
WORDS = [f"word{number}" for number in range(2000)]


def write_chunks(folder: Path, count: int, words: tuple[int, int] = (10, 110)) -> None:
    """Write `count` chunks of a realistic shape, with so many words each, in files of a few thousand."""
    rng = random.Random(0)
    for start in range(0, count, FILE_CHUNKS):
        records = [
            {
                "text": " ".join(rng.choices(WORDS, k=rng.randint(*words))),
                "metadata": {
                    "chunk_id": f"c-{number:08d}",
                    "source_file": f"doc{number // 50}.md",
                    "page": number % 50,
                },
            }
            for number in range(start, min(start + FILE_CHUNKS, count))
        ]
        (folder / f"part{start // FILE_CHUNKS:04d}_chunks.json").write_text(json.dumps(records))


def trivial_model(folder: Path) -> None:
    """A real sentence-transformers model of 384 dims that computes almost nothing."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    base = folder.with_name("base")
    base.mkdir()
    (base / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab_file=str(base / "vocab.txt"), model_max_length=256).save_pretrained(base)
    config = BertConfig(vocab_size=len(vocabulary), hidden_size=384, num_hidden_layers=0, num_attention_heads=12)
    BertModel(config).save_pretrained(base)
    modules = [Transformer(str(base), max_seq_length=256), Pooling(384, "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))


def measure(count: int, root: Path, exports: str) -> dict[str, Any]:
    """Embed `count` chunks in this process and return time and memory."""
    import psutil

    from ultimate_embedder import embed

    sampled = 0
    done = threading.Event()

    def sample() -> None:
        nonlocal sampled
        while not done.wait(0.05):
            # anonymous memory: file pages that were mapped to be read can be dropped at any time
            info = psutil.Process().memory_full_info()
            sampled = max(sampled, info.rss - info.shared)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    started = time.perf_counter()
    summary = embed(root / f"chunks{count}", root / f"out{count}", models=str(root / "model"), exports=exports)
    seconds = time.perf_counter() - started
    done.set()
    thread.join()
    (collection,) = summary.collections
    assert collection.chunks.embedded == count
    return {
        "chunks": count,
        "seconds": round(seconds, 1),
        "chunks_per_second": round(count / seconds),
        "ms_per_chunk": round(
            sum(value for name, value in collection.seconds_by_stage.items() if name != "model") / count * 1000, 3
        ),
        "peak_anonymous_mb": round(sampled / 1e6),
        "seconds_by_stage": {name: round(value, 1) for name, value in collection.seconds_by_stage.items()},
        "padding_ratio": round(collection.passes[0].padding_ratio, 4),
    }


def main() -> None:
    """Run each size in its own process, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--export", default="npy,parquet,jsonl,qdrant")
    parser.add_argument("--output", type=Path, default=Path("build/scale.json"))
    parser.add_argument("--one", nargs=2, metavar=("COUNT", "ROOT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(int(options.one[0]), Path(options.one[1]), options.export)))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="ultimate-embedder-scale-") as temporary:
        root = Path(temporary)
        trivial_model(root / "model")
        print(f"{'chunks':>8} {'seconds':>8} {'ms/chunk':>9} {'peak MB':>8}  stages")
        for size in map(int, options.sizes.split(",")):
            (root / f"chunks{size}" / "generated").mkdir(parents=True)
            write_chunks(root / f"chunks{size}" / "generated", size)
            command = [sys.executable, __file__, "--one", str(size), str(root), "--export", options.export]
            row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            rows.append(row)
            print(
                f"{row['chunks']:>8} {row['seconds']:>8} {row['ms_per_chunk']:>9} {row['peak_anonymous_mb']:>8}"
                f"  {row['seconds_by_stage']}",
                flush=True,
            )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
