"""Vectors of queries: encoded as the chunks were, once, and kept in the output by the key of their text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.chunks import TextList
from ultimate_embedder.errors import ModelError, OutputError
from ultimate_embedder.events import Emit, Warned
from ultimate_embedder.find.evaluate.sources import ModelVectors
from ultimate_embedder.find.query import QueryModels, encode_texts
from ultimate_embedder.find.recorded import RecordedModel
from ultimate_embedder.lock import hold_output
from ultimate_embedder.models import find_spec
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.types import PassIdentity
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
        keys = TextList(texts).keys
        identity = query_identity(model)
        kept = VectorStore(self.collection.queries, identity, read_only=True)
        for note in kept.notes:
            self._warn(note)
        missing = np.flatnonzero(~kept.holds(keys))
        _, first = np.unique(keys[missing], axis=0, return_index=True)
        new = missing[np.sort(first)]
        if not len(new):
            return np.asarray(kept.read(keys))
        computed = self._compute([texts[row] for row in new], model)
        self._keep(identity, keys[new], computed)
        return _joined(keys, kept, keys[new], computed)

    def _compute(self, texts: Sequence[str], model: ModelVectors) -> np.ndarray:
        encoder = self.models.encoder(_recorded(model), self.emit).for_queries()
        blocks = [
            encode_texts(encoder, texts[start : start + BLOCK_TEXTS], model.identity.dim)
            for start in range(0, len(texts), BLOCK_TEXTS)
        ]
        vectors = np.concatenate(blocks)
        if not np.isfinite(vectors).all():
            raise ModelError(f"{model.name} gave vectors that are not finite for some queries.")
        return vectors

    def _keep(self, identity: PassIdentity, keys: np.ndarray, vectors: np.ndarray) -> None:
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


def query_identity(model: ModelVectors) -> PassIdentity:
    """Everything that affects the vector of a query: equal identities mean equal vectors for equal texts."""
    identity = model.identity
    spec = find_spec(identity.model)
    prompt = spec.query_prompt.text if spec and spec.query_prompt else None  # else it is in the model's files
    facts = model.encoder
    return dataclasses.replace(
        identity,
        dtype="float32",
        max_tokens=facts.max_tokens if facts else identity.max_tokens,
        document_prompt=prompt,
        layout="padded",
        overlong="truncate",
        overlap=None,
    )


def _joined(keys: np.ndarray, kept: VectorStore, new_keys: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The vectors of all keys, of which some are kept and the others new."""
    vectors = np.empty((len(keys), new.shape[1]), np.float32)
    held = kept.holds(keys)
    if held.any():
        vectors[held] = kept.read(keys[held])
    place = {tuple(key): row for row, key in enumerate(new_keys.tolist())}
    for row in np.flatnonzero(~held):
        vectors[row] = new[place[tuple(keys[row].tolist())]]
    return vectors
