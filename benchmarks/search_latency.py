"""Latency of `search` on Qdrant Edge: dense exact, dense with a graph, sparse and hybrid, without the model and with it.

    make bench-search     # 100,000 points of 384 dims; prints a table and writes build/bench/search.json

Vectors are generated in clusters, as those of texts are; texts are of this project's own words. Shards are written by the
code that writes the export, and searched by the code of `search`: ranking, leg scores and payloads of ten hits. "With the
model" adds what encodes the question: all-MiniLM-L6-v2 for dense vectors, Qdrant's BM25 for sparse ones. Kinds of search
take turns, question by question, so that other load on the machine meets all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import qdrant_edge as edge

from benchmarks.measure import BUILD, make_texts
from ultimate_embedder.export.points import PointBlock, point_id
from ultimate_embedder.export.shard import build_shard
from ultimate_embedder.find.places import EdgePlace, Place, QueryLeg
from ultimate_embedder.find.ranking import rank
from ultimate_embedder.find.same_model import encode_texts
from ultimate_embedder.models import WordCounter, load_encoder, resolve_model
from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import UNNAMED, Bm25Settings, HnswGraph, SparseFacts, VectorSpec
from ultimate_embedder.vectors.bm25 import weigh_counts

MODEL, BM25 = "all-minilm-l6-v2", "bm25"
DIM = 384
DISTINCT_TEXTS = 5000
CLUSTERS = 300
NOISE = 0.7  # of a vector, relative to the centre of its cluster
BLOCK_ROWS = 1024
TOP, DEPTH = 10, 100
WARM_UP = 5
QUESTION_WORDS = 8


@dataclass(frozen=True)
class Generated:
    """Points as `build_shard` takes them."""

    matrix: np.ndarray
    texts: list[str]
    words: SparseVectors
    """Of the distinct texts."""
    vectors: tuple[VectorSpec, ...]
    sparse: tuple[SparseFacts, ...]
    stop: StopSwitch

    def blocks(self) -> Iterator[PointBlock]:
        """Yield the points block by block."""
        for start in range(0, len(self.matrix), BLOCK_ROWS):
            rows = range(start, min(start + BLOCK_ROWS, len(self.matrix)))
            ids = [str(row) for row in rows]
            chosen = np.array([row % len(self.texts) for row in rows])
            yield PointBlock(
                collection="bench",
                ids=ids,
                point_ids=[point_id("bench", each) for each in ids],
                texts=[self.texts[text] for text in chosen],
                records=[json.dumps({"metadata": {"page": row % 100}}) for row in rows],
                files=["bench.jsonl"] * len(ids),
                positions=list(rows),
                vectors={UNNAMED: self.matrix[start : start + len(ids)]},
                sparse={BM25: self.words.take(chosen)},
            )


@dataclass(frozen=True)
class Question:
    """A question, and the vectors that a model and BM25 would make of it, or nearly."""

    text: str
    dense: np.ndarray
    sparse: SparseVectors


@dataclass(frozen=True)
class Result:
    """Milliseconds of one kind of search."""

    search: str
    points: int
    questions: int
    median_ms: float
    p95_ms: float
    with_model_median_ms: float
    with_model_p95_ms: float


def generate(count: int, seed: int) -> Generated:
    """Clustered vectors, texts and their BM25 vectors."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((CLUSTERS, DIM)).astype(np.float32)
    matrix = np.empty((count, DIM), np.float32)
    for start in range(0, count, BLOCK_ROWS):
        rows = min(BLOCK_ROWS, count - start)
        noise = random.standard_normal((rows, DIM)).astype(np.float32)
        block = centres[random.integers(CLUSTERS, size=rows)] + NOISE * noise
        matrix[start : start + rows] = block / np.linalg.norm(block, axis=1, keepdims=True)
    texts, settings = make_texts(min(count, DISTINCT_TEXTS), seed), Bm25Settings()
    counts = WordCounter(settings).count(texts)
    length = float(counts.row_sums.mean())
    facts = SparseFacts(BM25, "bm25", "", BM25, "", "idf", float(counts.lengths.mean()), 0, settings, length)
    specs = (VectorSpec(UNNAMED, DIM), VectorSpec(BM25, None, "sparse"))
    return Generated(matrix, texts, weigh_counts(counts, settings, length), specs, (facts,), StopSwitch())


def make_questions(points: Generated, count: int, seed: int) -> list[Question]:
    """Words of some texts, and vectors near those of some points."""
    random, counter = np.random.default_rng(seed + 1), WordCounter(Bm25Settings())
    questions = []
    for row in random.integers(len(points.matrix), size=count):
        words = points.texts[row % len(points.texts)].split()
        text = " ".join(words[int(place)] for place in random.integers(len(words), size=QUESTION_WORDS))
        near = points.matrix[row] + 0.5 * random.standard_normal(DIM).astype(np.float32) / DIM**0.5
        questions.append(Question(text, near / np.linalg.norm(near), counter.query(text)))
    return questions


def open_place(points: Generated, folder: Path, graph: HnswGraph | None, stack: ExitStack) -> Place:
    """Write a shard, and open it."""
    folder.mkdir()
    build_shard(points, folder, lambda block, payloads: None, graph, lambda seconds: None)  # type: ignore[arg-type]
    place = EdgePlace(edge.EdgeShard.load(str(folder)), "bench", ExitStack())
    stack.callback(place.close)
    return place


Vectors = dict[str, np.ndarray | SparseVectors]


def measure(
    places: dict[str, tuple[Place, Sequence[str]]],
    questions: Sequence[Question],
    vectors_of: Callable[[Question, Sequence[str]], Vectors],
) -> dict[str, list[float]]:
    """Seconds of each question by kind of search, with what `vectors_of` takes."""
    taken: dict[str, list[float]] = {name: [] for name in places}
    for number, question in enumerate(questions):
        for name, (place, legs) in places.items():
            started = time.perf_counter()
            vectors = vectors_of(question, legs)
            _search(place, [QueryLeg(leg, leg, vectors[leg]) for leg in legs])
            if number >= WARM_UP:
                taken[name].append(time.perf_counter() - started)
    return taken


def found_by_graph(exact: Place, graph: Place, questions: Sequence[Question]) -> float:
    """The share of the ten nearest that the graph finds."""
    shares = []
    for question in questions:
        leg = QueryLeg(UNNAMED, UNNAMED, question.dense)
        nearest, found = ({each.key for each in place.nearest(leg, TOP, ())} for place in (exact, graph))
        shares.append(len(nearest & found) / max(1, len(nearest)))
    return float(np.mean(shares))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=BUILD / "search.json")
    options = parser.parse_args()
    points = generate(options.points, options.seed)
    questions = make_questions(points, options.questions + WARM_UP, options.seed)
    encoder, counter = load_encoder(resolve_model(MODEL), "float32", "cpu").for_queries(), WordCounter(Bm25Settings())

    def encode(question: Question, legs: Sequence[str]) -> Vectors:
        dense: Vectors = {UNNAMED: encode_texts(encoder, [question.text])[0]} if UNNAMED in legs else {}
        return {**dense, **({BM25: counter.query(question.text)} if BM25 in legs else {})}

    with tempfile.TemporaryDirectory(prefix="search-latency-") as scratch, ExitStack() as stack:
        started = time.perf_counter()
        exact = open_place(points, Path(scratch) / "exact", None, stack)
        written = time.perf_counter()
        graph = open_place(points, Path(scratch) / "graph", HnswGraph(), stack)
        built = time.perf_counter()
        both = (UNNAMED, BM25)
        places: dict[str, tuple[Place, Sequence[str]]] = {
            "dense exact": (exact, (UNNAMED,)),
            "dense HNSW": (graph, (UNNAMED,)),
            "sparse": (exact, (BM25,)),
            "hybrid zscore, exact": (exact, both),
            "hybrid zscore, HNSW": (graph, both),
        }
        # one after the other: a model's threads would disturb the searches that follow
        without = measure(places, questions, lambda question, legs: {UNNAMED: question.dense, BM25: question.sparse})
        with_model = measure(places, questions, encode)
        share = found_by_graph(exact, graph, questions)
    results = [_result(name, options.points, without[name], with_model[name]) for name in places]
    facts = {
        "points": options.points,
        "dims": DIM,
        "load_average": os.getloadavg()[0],
        "seconds_to_write": written - started,
        "seconds_to_write_with_graph": built - written,
        "found_by_graph": share,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({**facts, "results": [asdict(each) for each in results]}, indent=2))
    _print(results, facts)


def _search(place: Place, legs: Sequence[QueryLeg]) -> None:
    """What `search` does with a question that is encoded."""
    found = rank(place, legs, "zscore", TOP, DEPTH, ())
    place.payloads([each.id for each in found.ranked])


def _result(name: str, points: int, without: Sequence[float], with_model: Sequence[float]) -> Result:
    numbers = [float(np.percentile(seconds, share)) * 1000 for seconds in (without, with_model) for share in (50, 95)]
    return Result(name, points, len(without), *numbers)


def _print(results: Sequence[Result], facts: dict[str, float]) -> None:
    print(f"{facts['points']:,} points, {DIM} dims; load average {facts['load_average']:.1f}")
    print(f"| {'search':21} | median ms | 95 % ms | with model: median ms | 95 % ms |")
    print("|---|---|---|---|---|")
    for each in results:
        alone = f"{each.median_ms:.1f} | {each.p95_ms:.1f}"
        print(f"| {each.search:21} | {alone} | {each.with_model_median_ms:.1f} | {each.with_model_p95_ms:.1f} |")
    print(f"the graph finds {facts['found_by_graph']:.1%} of the ten nearest")


if __name__ == "__main__":
    main()
