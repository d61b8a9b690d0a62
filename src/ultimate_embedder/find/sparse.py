"""Encode queries for the sparse vectors of a collection, as its chunks were encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.events import Emit
from ultimate_embedder.export import read_export_journal, read_sparse_facts
from ultimate_embedder.find.same_model import encode_texts, find_same_model
from ultimate_embedder.models import SparseModel, WordCounter, load_sparse_model
from ultimate_embedder.output import Output
from ultimate_embedder.sparse import SparseVectors, sparse_from_dense
from ultimate_embedder.summary import RunSummary
from ultimate_embedder.types import SparseFacts


@dataclass(frozen=True)
class SparseQueryEncoder:
    """Encodes queries for one sparse vector, on the CPU."""

    facts: SparseFacts
    encoder: WordCounter | SparseModel

    def encode_query(self, text: str) -> SparseVectors:
        """The sparse vector of a query: one row, which is empty if the query has no known words."""
        if isinstance(self.encoder, WordCounter):
            return self.encoder.query(text)
        return sparse_from_dense(encode_texts(self.encoder.for_queries(), [text]))

    def encode_documents(self, texts: list[str]) -> SparseVectors:
        """Sparse vectors of texts, encoded like chunks; of BM25 the counts, which `weigh_counts` turns into weights."""
        if isinstance(self.encoder, WordCounter):
            return self.encoder.count(texts)
        return sparse_from_dense(encode_texts(self.encoder, texts))


def read_sparse(output: Output, collection: str) -> tuple[SparseFacts, ...]:
    """What is known of the sparse vectors of a collection: from the journal of its exports, else from the summary."""
    journal = read_export_journal(output[collection].folder)
    for noted in [journal.get("parquet", {}), *journal.values()]:
        if "vectors" in noted:
            return read_sparse_facts(noted.get("sparse"))
    summary = output.read_summary()
    entries = [each for each in summary.collections if each.collection == collection] if summary else []
    return tuple(entries[0].sparse) if entries else ()


def open_sparse_query(output: Output, collection: str, name: str | None, access: HubAccess) -> SparseQueryEncoder:
    """What encodes queries for a sparse vector of a collection; the name may be None if it has only one."""
    by_name = {facts.name: facts for facts in read_sparse(output, collection)}
    if not by_name:
        raise UsageError(f"{collection} has no sparse vectors. Run embed again with --sparse bm25, for example.")
    if (name is None and len(by_name) > 1) or (name is not None and name not in by_name):
        raise UsageError(f"{collection} has the sparse vectors {', '.join(by_name)}, not {name}. Name one of them.")
    facts = by_name[name] if name is not None else next(iter(by_name.values()))
    return load_sparse_query(facts, output.try_summary()[0] if facts.bm25 is None else None, access)


def load_sparse_query(
    facts: SparseFacts,
    summary: RunSummary | None,
    access: HubAccess,
    emit: Emit = lambda event: None,
    folders: Sequence[str] = (),
) -> SparseQueryEncoder:
    """What encodes queries for a sparse vector; `folders` are where its model may be."""
    if facts.bm25 is not None:
        return SparseQueryEncoder(facts, _word_counter(facts))
    options = summary.options if summary else None
    model = find_same_model(facts.model, facts.digest, summary, access, emit, folders, kind="sparse")
    limit, cap = (options.max_tokens, options.token_cap) if options else (None, None)
    encoder = load_sparse_model(model, "float32", limit, access.trusted, token_cap=cap, for_queries=True)
    return SparseQueryEncoder(facts, encoder)


def query_sparse(facts: SparseFacts, text: str) -> SparseVectors:
    """The BM25 vector of a query, from what an output says of its sparse vector: needs no model and no files."""
    return _word_counter(facts).query(text)


def inverse_frequencies(frequency: np.ndarray, points: int) -> np.ndarray:
    """IDF as Qdrant computes it: ln((N - n + 0.5) / (n + 0.5) + 1), of N points of which n have the word."""
    return np.asarray(np.log((points - frequency + 0.5) / (frequency + 0.5) + 1))


def _word_counter(facts: SparseFacts) -> WordCounter:
    """Raises `ModelError` if the installed engine would tell words apart in another way than the one that counted."""
    if facts.bm25 is None:
        raise UsageError(
            f"the sparse vector {facts.name} is not made by BM25: its queries need the model {facts.model}."
        )
    counter = WordCounter(facts.bm25)
    if counter.digest() != facts.digest:
        raise ModelError(
            f"the installed qdrant-edge-py tells words apart in another way than the one that made the vectors "
            f"{facts.name}: queries would not match them. Run the same embed command again: words are counted again, "
            "and dense vectors are kept."
        )
    return counter
