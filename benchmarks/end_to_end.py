"""From chunk files to vectors, Parquet and a Qdrant shard: our command line against a short script that does the same.

Prints a table and writes build/bench/end_to_end.json. The script is what people write: sentence-transformers at its
defaults, then numpy, pyarrow and qdrant-edge. Both run in processes of their own, interleaved, imports included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys

from benchmarks.measure import BUILD, ROOT, machine, make_texts, watch, write_chunk_folder

SCRIPT = """
import json, sys, uuid
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from qdrant_edge import Distance, EdgeConfig, EdgeOptimizersConfig, EdgeShard, EdgeVectorParams, Point, UpdateOperation
from sentence_transformers import SentenceTransformer
import time
chunks, output, model = map(Path, sys.argv[1:])
texts = [text for file in sorted(chunks.rglob("*_chunks.json")) for text in json.loads(file.read_text())]
loaded = SentenceTransformer(str(model), device="cpu")
started = time.perf_counter()
vectors = loaded.encode(texts, show_progress_bar=False)
encode_s = time.perf_counter() - started
output.mkdir(parents=True)
np.save(output / "embeddings.npy", vectors)
pq.write_table(pa.table({"text": texts, "vector": list(vectors)}), output / "chunks.parquet")
(output / "qdrant").mkdir()
shard = EdgeShard.create(str(output / "qdrant"), EdgeConfig(vectors=EdgeVectorParams(size=384, distance=Distance.Cosine), optimizers=EdgeOptimizersConfig(indexing_threshold=10**9)))
for start in range(0, len(texts), 256):
    shard.update(UpdateOperation.upsert_points([Point(id=str(uuid.uuid4()), vector=vectors[row].tolist(), payload={"text": texts[row]}) for row in range(start, min(start + 256, len(texts)))]))
shard.flush(); shard.close()
print(json.dumps({"encode_seconds": encode_s}))
"""
OURS = """
import json, sys
from ultimate_embedder.cli import run
chunks, output, model = sys.argv[1:]
sys.argv[1:] = ["embed", chunks, "--output", output, "--models", model, "--devices", "cpu", "--quiet"]
code = run()
summary = json.load(open(output + "/summary.json"))
print(json.dumps({"encode_seconds": summary["collections"][0]["passes"][0]["seconds"]}))
sys.exit(code)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2877)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only-ours", action="store_true", help="without the script")
    options = parser.parse_args()
    from benchmarks.peers import model_folder

    model = model_folder()
    chunks = write_chunk_folder(make_texts(options.texts), BUILD / "chunks")
    programs = {"ours": OURS} if options.only_ours else {"ours": OURS, "script with sentence-transformers": SCRIPT}
    runs: dict[str, list] = {name: [] for name in programs}
    for _ in range(options.rounds):
        for name, program in programs.items():
            shutil.rmtree(BUILD / "out", ignore_errors=True)
            runs[name].append(watch([sys.executable, "-c", program, str(chunks), str(BUILD / "out"), str(model)]))
    rows = []
    for name, each in runs.items():
        total = statistics.median(run.seconds for run in each)
        encode = statistics.median(run.answer["encode_seconds"] for run in each)
        peak = statistics.median(run.peak_mb for run in each)
        rows.append(
            {"name": name, "seconds": total, "encode_seconds": encode, "ratio": total / encode, "peak_mb": peak}
        )
    (BUILD / "end_to_end.json").write_text(
        json.dumps({"machine": machine(), "texts": options.texts, "rows": rows}, indent=2)
    )
    print(
        f"{options.texts} texts from chunk files to npy, Parquet and a Qdrant shard, {options.rounds} rounds, interleaved"
    )
    print(f"{'':36}{'whole s':>9}{'encode s':>10}{'whole / encode':>16}{'MB':>7}")
    for row in rows:
        print(
            f"{row['name']:36}{row['seconds']:>9.1f}{row['encode_seconds']:>10.1f}{row['ratio']:>16.3f}{row['peak_mb']:>7.0f}"
        )


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
