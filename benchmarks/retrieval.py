"""Judged collections in BEIR's form, and how well vectors find what was judged relevant."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.batching import plan_batches
from ultimate_embedder.devices import CPU_BUDGET_TOKENS, CpuDevice
from ultimate_embedder.find.evaluate.judgements import read_judgements
from ultimate_embedder.find.evaluate.measures import TOP, Relevant, measure_rankings
from ultimate_embedder.find.evaluate.queries import read_queries
from ultimate_embedder.machine import usable_cores
from ultimate_embedder.models import Encoder, row_cosines


@dataclass(frozen=True)
class Judged:
    """A collection: texts of documents and of queries, and the grades of each query by row of documents."""

    name: str
    documents: list[str]
    queries: list[str]
    relevant: list[Relevant]


@dataclass(frozen=True)
class Vectors:
    """Of the documents and queries of a collection."""

    documents: np.ndarray
    queries: np.ndarray

    @property
    def all(self) -> np.ndarray:
        """Both, the documents first."""
        return np.concatenate([self.documents, self.queries])


def read_judged(folder: Path, most: int | None = None) -> Judged:
    """`corpus.jsonl`, `queries.jsonl` and `qrels.tsv` of a folder; `most` documents of it."""
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row["text"].strip()][:most]
    places = {str(row["_id"]): place for place, row in enumerate(rows)}
    grades = read_judgements(folder / "qrels.tsv").grades
    queries = {key: text for key, text in read_queries(folder / "queries.jsonl").texts.items() if key in grades}
    relevant = [
        Relevant(
            {places[document]: grade for document, grade in grades[query].items() if document in places},
            tuple(grade for document, grade in grades[query].items() if document not in places),
        )
        for query in queries
    ]
    documents = [f"{row.get('title', '')} {row['text']}".strip() for row in rows]
    return Judged(folder.name, documents, list(queries.values()), relevant)


def encode(encoder: Encoder, texts: list[str]) -> np.ndarray:
    """Vectors of length 1, computed by one thread per core as a run does."""
    tokenized = encoder.tokenize(texts)
    vectors = np.zeros((len(texts), encoder.dim), np.float32)

    def run(rows: np.ndarray) -> None:
        device = CpuDevice(workers=1)
        with device.computing():
            packed = encoder.can_pack_rows(tokenized, rows, device)
            vectors[rows] = encoder.forward(encoder.batch(tokenized, rows, packed=packed)).numpy()

    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(run, [batch.rows for batch in plan_batches(tokenized.lengths, CPU_BUDGET_TOKENS)]):
            pass
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def encode_judged(encoder: Encoder, judged: Judged) -> Vectors:
    """The vectors of a collection."""
    return Vectors(encode(encoder, judged.documents), encode(encoder.for_queries(), judged.queries))


def ndcg(vectors: Vectors, judged: Judged) -> np.ndarray:
    """nDCG@10 of each query, by exact search; equal scores are in the order of the documents."""
    scores = vectors.queries @ vectors.documents.T
    rankings = [np.argsort(-row, kind="stable")[:TOP] for row in scores]
    return np.asarray(measure_rankings(rankings, judged.relevant, only_deciding=True)[:, 0])


def compare(vectors: Vectors, reference: Vectors, judged: Judged) -> dict[str, Any]:
    """How near vectors are to those in fp32, and what both find.

    Queries are in fp32, as `search`, `evaluate` and `serve` encode them, whatever the documents are in; also given is what
    is found with queries like the documents.
    """
    cosines = row_cosines(vectors.all, reference.all)
    theirs = ndcg(reference, judged)
    ours = ndcg(Vectors(vectors.documents, reference.queries), judged)
    changes = ours - theirs
    return {
        "texts": len(cosines),
        "mean_cosine": float(cosines.mean()),
        "worst_cosine": float(cosines.min()),
        "queries": len(changes),
        "ndcg": float(ours.mean()),
        "ndcg_fp32": float(theirs.mean()),
        "ndcg_queries_alike": float(ndcg(vectors, judged).mean()),
        "standard_error": float(changes.std(ddof=1) / np.sqrt(len(changes))),
        "queries_changed": int((changes != 0).sum()),
    }
