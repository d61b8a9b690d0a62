"""Encode queries or documents with the models and the fusion of a collection."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.config import HubAccess
from ultimate_embedder.events import Emit, ModelLoadStarted
from ultimate_embedder.find.recorded import RecordedModel, RecordedVectors, read_recorded
from ultimate_embedder.find.same_model import encode_texts, find_same_model
from ultimate_embedder.find.sparse import SparseQueryEncoder, load_sparse_query
from ultimate_embedder.models import Encoder, SegmentCutter, load_encoder
from ultimate_embedder.output import Output
from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.summary import RunSummary
from ultimate_embedder.types import UNNAMED, SparseFacts
from ultimate_embedder.vectors import Fusion, shorten


@dataclass(frozen=True)
class QueryEncoder:
    """Encodes texts on the CPU, as those of a collection were encoded."""

    encoders: tuple[Encoder, ...]
    fusion: Fusion
    dim: int | None = None
    cutters: tuple[SegmentCutter | None, ...] | None = None
    """What cuts long documents for each encoder, if their segments were pooled."""

    def encode_query(self, text: str) -> dict[str, np.ndarray]:
        """Vectors of a query, one row each, by name; '' if the collection has one unnamed vector."""
        return self._fused([encode_texts(encoder.for_queries(), [text]) for encoder in self.encoders])

    def encode_documents(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Vectors of texts, encoded like chunks."""
        pairs = zip(self.encoders, self.cutters or [None] * len(self.encoders), strict=True)
        return self._fused([encode_texts(encoder, texts, self.dim, cutter) for encoder, cutter in pairs])

    def _fused(self, vectors: list[np.ndarray]) -> dict[str, np.ndarray]:
        truncated = [shorten(each, self.dim) if self.dim is not None else each for each in vectors]
        return self.fusion.fuse(truncated)


class QueryModels:
    """The models of an output, on the CPU: each is found and loaded when it is first needed, and kept."""

    def __init__(
        self,
        summary: RunSummary | None,
        access: HubAccess,
        folders: Sequence[str] = (),
    ) -> None:
        """`folders` are where models may be that the summary names in other places."""
        self._summary = summary
        self._access = access
        self._folders = tuple(folders)
        self._encoders: dict[RecordedModel, Encoder] = {}
        self._sparse: dict[SparseFacts, SparseQueryEncoder] = {}

    def encoder(self, model: RecordedModel, emit: Emit = lambda event: None) -> Encoder:
        """The model that made vectors; raises `ModelError` if it is not on this machine, or has changed."""
        if model not in self._encoders:
            emit(ModelLoadStarted(model=model.name))
            found = find_same_model(model.name, model.digest, self._summary, self._access, emit, self._folders)
            self._encoders[model] = load_encoder(
                found,
                "float32",
                "cpu",
                model.max_tokens,
                self._access.trusted,
                token_cap=model.token_cap,
                may_fuse=True,
            )
        return self._encoders[model]

    def sparse_encoder(self, facts: SparseFacts, emit: Emit = lambda event: None) -> SparseQueryEncoder:
        """What encodes queries for a sparse vector; for BM25 no model is needed."""
        if facts not in self._sparse:
            if facts.bm25 is None:
                emit(ModelLoadStarted(model=facts.model))
            self._sparse[facts] = load_sparse_query(facts, self._summary, self._access, emit, self._folders)
        return self._sparse[facts]

    def load(self, recorded: RecordedVectors, names: Collection[str], emit: Emit = lambda event: None) -> None:
        """Load the models that made the vectors of these names."""
        for model in _makers(recorded, names):
            self.encoder(model, emit)
        for facts in recorded.sparse:
            if facts.name in names:
                self.sparse_encoder(facts, emit)

    def encode_query(
        self, text: str, recorded: RecordedVectors, names: Collection[str]
    ) -> dict[str, np.ndarray | SparseVectors]:
        """Vectors of a query by name; sparse ones have one row."""
        needed = _makers(recorded, names)
        vectors = [self._encode(model, text) for model in needed]
        fused = recorded.fusion.fuse(vectors) if UNNAMED in names else {}
        dense = fused or {model.name: each for model, each in zip(needed, vectors, strict=True)}
        sparse = [facts for facts in recorded.sparse if facts.name in names]
        return {
            **{name: each[0] for name, each in dense.items()},
            **{facts.name: self.sparse_encoder(facts).encode_query(text) for facts in sparse},
        }

    def _encode(self, model: RecordedModel, text: str) -> np.ndarray:
        vectors = encode_texts(self.encoder(model).for_queries(), [text])
        return shorten(vectors, model.dim) if model.dim is not None else vectors


def _makers(recorded: RecordedVectors, names: Collection[str]) -> list[RecordedModel]:
    return [model for model in recorded.models if UNNAMED in names or model.name in names]


def open_query_encoder(output: Output, collection: str, access: HubAccess) -> QueryEncoder:
    """Load the models and the fusion of a collection; raises if one is not here, or has changed."""
    recorded = read_recorded(output, collection)
    models = QueryModels(output.try_summary()[0], access)
    encoders = tuple(map(models.encoder, recorded.models))
    cutters = tuple(map(_cutter, recorded.models, encoders))
    return QueryEncoder(encoders, recorded.fusion, recorded.models[0].dim, cutters)


def _cutter(model: RecordedModel, encoder: Encoder) -> SegmentCutter | None:
    return SegmentCutter(encoder, model.overlap) if model.pools else None
