"""Vectors of queries: encoded as the chunks were, once, and kept in the output by the key of their text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ultimate_embedder.chunks import TextList
from ultimate_embedder.errors import ModelError, OutputError
from ultimate_embedder.events import Emit, Warned
from ultimate_embedder.find.evaluate.sources import ModelVectors
from ultimate_embedder.find.query import QueryModels
from ultimate_embedder.find.recorded import RecordedModel
from ultimate_embedder.find.same_model import encode_texts
from ultimate_embedder.lock import hold_output
from ultimate_embedder.models import find_spec
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.sparse import SparseVectors, join_sparse
from ultimate_embedder.types import PassIdentity, SparseFacts
from ultimate_embedder.vectors import VectorStore

BLOCK_TEXTS = 4096


@dataclass(frozen=True)
class QueryVectors:
    """Encodes queries with the models of a collection."""

    output: Output
    collection: CollectionOutput
    models: QueryModels
    emit: Emit

    def encode(self, texts: Sequence[str], model: ModelVectors) -> np.ndarray:
        """A vector for each text, from the output if it is there; what is new is kept there, if that is possible."""

        def compute(new: Sequence[str]) -> np.ndarray:
            encoder = self.models.encoder(_recorded(model), self.emit).for_queries()
            blocks = [encode_texts(encoder, block, model.identity.dim) for block in _blocks(new, BLOCK_TEXTS)]
            return _finite(np.concatenate(blocks), model.name)

        facts = model.encoder
        identity = query_identity(model.identity, facts.max_tokens if facts else model.identity.max_tokens)
        found, places = self._find(texts, identity, compute)
        return np.asarray(np.concatenate(found)[places])

    def encode_sparse(self, texts: Sequence[str], facts: SparseFacts, identity: PassIdentity | None) -> SparseVectors:
        """The same for sparse vectors; those of BM25 need no model, and are not kept."""

        def compute(new: Sequence[str]) -> SparseVectors:
            encoder = self.models.sparse_encoder(facts, self.emit)
            return join_sparse([encoder.encode_query(text) for text in new])

        if facts.bm25 is not None or identity is None:
            return compute(texts)
        found, places = self._find(texts, query_identity(identity, identity.max_tokens), compute)
        return join_sparse(found).take(places)

    def _find(
        self, texts: Sequence[str], identity: PassIdentity, compute: Callable[[Sequence[str]], Any]
    ) -> tuple[list[Any], np.ndarray]:
        """Vectors that are kept, and those that had to be computed; the place of each text in both together."""
        keys = TextList(texts).keys
        kept = VectorStore(self.collection.queries, identity, read_only=True)
        for note in kept.notes:
            self._warn(note)
        held = kept.holds(keys)
        places = np.cumsum(held) - 1
        found = [kept.read(keys[held])] if held.any() else []
        if not held.all():
            missing = np.flatnonzero(~held)
            _, first, which = np.unique(keys[missing], axis=0, return_index=True, return_inverse=True)
            new = missing[first]
            computed = compute([texts[row] for row in new])
            self._keep(identity, keys[new], computed)
            found.append(computed)
            places[missing] = int(held.sum()) + which.reshape(-1)
        return found, places

    def _keep(self, identity: PassIdentity, keys: np.ndarray, vectors: Any) -> None:
        try:
            with hold_output(self.output.folder):
                self.collection.refuse_links_in_queries()
                with VectorStore(self.collection.queries, identity) as store:
                    store.append(keys, vectors, np.zeros(len(keys), bool))
        except (OutputError, OSError) as error:
            self._warn(f"the vectors of the queries are not kept for the next time: {error}")

    def _warn(self, message: str) -> None:
        self.emit(Warned(collection=self.collection.name, message=message))


def _recorded(model: ModelVectors) -> RecordedModel:
    """The model, as search asks for it."""
    identity, facts = model.identity, model.encoder
    return RecordedModel(
        name=identity.model,
        digest=identity.model_digest,
        dim=identity.dim,
        max_tokens=facts.max_tokens if facts else None,
        token_cap=None if facts else identity.max_tokens,
    )


def query_identity(identity: PassIdentity, max_tokens: int | None) -> PassIdentity:
    """Everything that affects the vector of a query: equal identities mean equal vectors for equal texts."""
    spec = find_spec(identity.model)
    prompt = spec.query_prompt.text if spec and spec.query_prompt else None  # else it is in the model's files
    return dataclasses.replace(
        identity,
        dtype="float32",
        max_tokens=max_tokens,
        document_prompt=prompt,
        layout="padded",
        overlong="truncate",
        overlap=None,
    )


def _blocks(texts: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), size):
        yield texts[start : start + size]


def _finite(vectors: np.ndarray, model: str) -> np.ndarray:
    if not np.isfinite(vectors).all():
        raise ModelError(f"{model} gave vectors that are not finite for some queries.")
    return vectors
