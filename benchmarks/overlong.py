"""What becomes of texts that are too long, and what it costs: nDCG@10 with --overlong truncate, pool and split.

    PYTHONPATH=. python benchmarks/overlong.py --data FOLDER      corpus.jsonl, queries.jsonl and qrels.tsv, as BEIR has them

Documents that are too long as they are, are left out, and a fifth of the others is made too long: documents that are
relevant to no query are put before it, after it, or on both sides. So the judgements stay right, and the relevant part is
within the token limit in a third of the long texts. A document that was split has the score of its best segment.
Prints a table and writes build/bench/overlong.json.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.measure import BUILD, machine

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cranfield"
COLLECTION = "documents"
HOW = ("truncate", "pool", "split")
LONG_EVERY = 5  # every fifth document
FITTING_CHARACTERS = 1000  # documents of more are left out: so that the others fit
FILLER_CHARACTERS = 1800  # on each side: more than the 256 tokens of all-MiniLM-L6-v2
DEPTH = 10
SEED = 7

Judgements = dict[str, dict[str, int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--documents", type=int, help="only the first of them (default: all)")
    parser.add_argument("--how", nargs="+", choices=HOW, default=HOW)
    parser.add_argument("--model", default="all-minilm-l6-v2")
    options = parser.parse_args()
    if not (options.data / "corpus.jsonl").exists():
        sys.exit(f"skipped: {options.data} has no corpus.jsonl. Name a folder with --data.")
    found = read_texts(options.data / "corpus.jsonl").items()
    fitting = [(name, text) for name, text in found if len(text) <= FITTING_CHARACTERS]
    texts = dict(fitting[: options.documents])
    judgements = read_judgements(options.data / "qrels.tsv", texts)
    documents, long = lengthen(texts, judgements)
    chunks = BUILD / "overlong-chunks" / COLLECTION
    chunks.mkdir(parents=True, exist_ok=True)
    records = [{"chunk_id": name, "text": text} for name, text in documents.items()]
    (chunks / "all_chunks.json").write_text(json.dumps(records), "utf-8")
    queries = {name: text for name, text in read_texts(options.data / "queries.jsonl").items() if name in judgements}
    print(f"{len(documents)} documents, {long} of them lengthened, {len(queries)} queries")
    results = {how: measure(how, chunks.parent, queries, judgements, options.model) for how in options.how}
    for how, row in results.items():
        print(
            f"{how:9} nDCG@10 {row['ndcg']:.4f}   of queries with a relevant long text {row['ndcg_long']:.4f}   "
            f"vectors {row['vectors']:,}   tokens {row['tokens']:,}   CPU seconds {row['cpu_seconds']:.0f}"
        )
    (BUILD / "overlong.json").write_text(json.dumps({"machine": machine(), "results": results}, indent=1), "utf-8")


def read_texts(path: Path) -> dict[str, str]:
    """Texts by id, with the title before the text if there is one."""
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    texts = {each["_id"]: " ".join(filter(None, [each.get("title"), each["text"]])).strip() for each in records}
    return {name: text for name, text in texts.items() if text}


def read_judgements(path: Path, documents: Collection[str]) -> Judgements:
    """Grades above 0 of these documents, by query and document."""
    found: Judgements = {}
    for line in path.read_text("utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        if int(grade) > 0 and document in documents:
            found.setdefault(query, {})[document] = int(grade)
    return found


def lengthen(texts: Mapping[str, str], judgements: Judgements) -> tuple[dict[str, str], int]:
    """The texts, every fifth of them too long; and how many these are."""
    chosen = random.Random(SEED)
    relevant = {document for grades in judgements.values() for document in grades}
    fillers = [text for name, text in texts.items() if name not in relevant]
    names = sorted(texts)
    chosen.shuffle(names)
    long = names[: len(names) // LONG_EVERY]
    made = dict(texts)
    for number, name in enumerate(long):
        before, after = ([True, False], [False, True], [True, True])[number % 3]
        parts = [filler(fillers, chosen) if before else "", texts[name], filler(fillers, chosen) if after else ""]
        made[name] = " ".join(filter(None, parts))
    return made, len(long)


def filler(texts: Sequence[str], chosen: random.Random) -> str:
    """Some texts that are relevant to no query."""
    parts: list[str] = []
    while sum(map(len, parts)) < FILLER_CHARACTERS:
        parts.append(chosen.choice(texts))
    return " ".join(parts)


def measure(how: str, chunks: Path, queries: Mapping[str, str], judgements: Judgements, model: str) -> dict[str, Any]:
    """Embed the collection one way, and search it."""
    from ultimate_embedder import embed, open_output
    from ultimate_embedder.config import HubAccess
    from ultimate_embedder.find import open_query_encoder

    output = BUILD / f"overlong-{how}"
    shutil.rmtree(output, ignore_errors=True)
    started = time.process_time()
    summary = embed(chunks, output, models=[model], overlong=how, devices="cpu", exports="npy,parquet", quiet=True)
    seconds = time.process_time() - started
    (done,) = summary.collections
    if not summary.ok:
        sys.exit(f"{how}: {done.error}")
    vectors = np.load(open_output(output)[COLLECTION].embeddings)
    parents = list(parent_ids(open_output(output)[COLLECTION].points))
    encoder = open_query_encoder(open_output(output), COLLECTION, HubAccess(offline=True))
    long = {
        each["chunk_id"]
        for each in json.loads((chunks / COLLECTION / "all_chunks.json").read_text("utf-8"))
        if len(each["text"]) > FILLER_CHARACTERS
    }
    scores: dict[str, float] = {}
    for name, text in queries.items():
        (vector,) = encoder.encode_query(text).values()
        scores[name] = ndcg(ranking(vectors @ vector[0], parents), judgements[name])
    of_long = [score for name, score in scores.items() if long & judgements[name].keys()]
    return {
        "ndcg": float(np.mean(list(scores.values()))),
        "ndcg_long": float(np.mean(of_long)),
        "vectors": len(vectors),
        "tokens": sum(each.tokens for each in done.passes),
        "cpu_seconds": seconds,
    }


def parent_ids(points: Path) -> Iterator[str]:
    """The document of each point."""
    table = pq.read_table(points, columns=["chunk_id", "extra"])
    for chunk_id, extra in zip(table["chunk_id"].to_pylist(), table["extra"].to_pylist(), strict=True):
        origin = json.loads(extra).get("split_from")
        yield origin["chunk_id"] if origin else chunk_id


def ranking(similarity: np.ndarray, documents: Sequence[str]) -> list[str]:
    """Documents by their best point."""
    order = np.argsort(-similarity, kind="stable")
    return list(dict.fromkeys(documents[row] for row in order[: 50 * DEPTH]))[:DEPTH]


def ndcg(found: Sequence[str], grades: Mapping[str, int]) -> float:
    """Normalised discounted cumulative gain of a ranking."""
    discounts = 1 / np.log2(np.arange(2, DEPTH + 2))
    gains = np.array([grades.get(name, 0) for name in found], float)
    best = np.array(sorted(grades.values(), reverse=True)[:DEPTH], float)
    return float((gains * discounts[: len(gains)]).sum() / (best * discounts[: len(best)]).sum())


if __name__ == "__main__":
    main()
