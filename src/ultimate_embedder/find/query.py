"""Encode queries or documents with the models and the fusion of a collection."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.batching import plan_batches
from ultimate_embedder.config import HubAccess
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import Emit, ModelLoadStarted
from ultimate_embedder.find.recorded import RecordedModel, RecordedVectors, read_recorded
from ultimate_embedder.models import Encoder, SegmentCutter, find_spec, load_encoder, model_name, resolve_model
from ultimate_embedder.output import Output
from ultimate_embedder.summary import ModelSummary, RunSummary
from ultimate_embedder.types import UNNAMED, ModelKind, ResolvedModel
from ultimate_embedder.vectors import Fusion, pool_largest, pool_texts, shorten

SAME_MODEL = "A query must be encoded by the model that made the vectors: if it is in another folder, give --model DIR."


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

    def encoder(self, model: RecordedModel, emit: Emit = lambda event: None) -> Encoder:
        """The model that made vectors; raises `ModelError` if it is not on this machine, or has changed."""
        if model not in self._encoders:
            emit(ModelLoadStarted(model=model.name))
            self._encoders[model] = load_encoder(
                self._find(model, emit),
                "float32",
                "cpu",
                model.max_tokens,
                self._access.trusted,
                token_cap=model.token_cap,
            )
        return self._encoders[model]

    def _find(self, model: RecordedModel, emit: Emit) -> ResolvedModel:
        try:
            return resolve_same_model(
                model.name, model.digest, self._summary, self._access, emit=emit, folders=self._folders
            )
        except ModelError as error:
            raise ModelError(f"{str(error).rstrip('.')}. {SAME_MODEL}") from error

    def load(self, recorded: RecordedVectors, names: Collection[str], emit: Emit = lambda event: None) -> None:
        """Load the models that made the vectors of these names."""
        for model in _makers(recorded, names):
            self.encoder(model, emit)

    def encode_query(self, text: str, recorded: RecordedVectors, names: Collection[str]) -> dict[str, np.ndarray]:
        """Vectors of a query by name."""
        needed = _makers(recorded, names)
        vectors = [self._encode(model, text) for model in needed]
        if UNNAMED in names:
            return {name: each[0] for name, each in recorded.fusion.fuse(vectors).items()}
        return {model.name: each[0] for model, each in zip(needed, vectors, strict=True)}

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


def resolve_same_model(
    name: str,
    digest: str,
    summary: RunSummary | None,
    access: HubAccess,
    *,
    kind: ModelKind = "embedder",
    emit: Emit = lambda event: None,
    folders: Sequence[str] = (),
) -> ResolvedModel:
    """Find the model of a pass, in `folders`, by the path in the summary, or by name; its files must be the same."""
    differs: list[str] = []
    problems: list[ModelError] = []
    words = [*folders, *_words(name, digest, summary), *([name] if find_spec(name) else [])]
    if not words:
        raise ModelError(f"{name} is not in the registry, and there is no summary with its path")
    for word in dict.fromkeys(words):
        try:
            model = resolve_model(word, access, emit, kind=kind)
        except ModelError as error:
            if word not in folders:
                problems.append(error)
            continue
        if model.digest == digest:
            return model
        if word not in folders:
            differs.append(str(model.path))
    if differs:
        raise ModelError(
            f"{name} on this machine is not the model of these vectors (its files differ): {', '.join(differs)}"
        )
    raise problems[0] if problems else ModelError(f"{name} is in none of {', '.join(folders)}")


def encode_texts(
    encoder: Encoder, texts: Sequence[str], dim: int | None = None, cutter: SegmentCutter | None = None
) -> np.ndarray:
    """Vectors of texts from one model, on the CPU, cut to `dim`; with a `cutter`, long texts are pooled."""
    tokenized = encoder.tokenize(texts)
    if cutter is not None:
        tokenized = cutter.in_segments(texts, tokenized)
    vectors = np.empty((len(tokenized.rows), encoder.dim), np.float32)
    for batch in plan_batches(tokenized.lengths, CpuDevice().fixed_budget_tokens or 1):
        vectors[batch.rows] = encoder.forward(encoder.batch(tokenized, batch.rows)).cpu().numpy()
    vectors = shorten(vectors, dim) if dim is not None else vectors
    if (segments := tokenized.segments) is None:
        return vectors
    if encoder.kind == "sparse":
        return pool_largest(vectors, segments.text_of_row)
    normalize = encoder.unit_norm or dim is not None
    return pool_texts(vectors, segments.text_of_row, segments.weights, normalize=normalize)


def _words(name: str, digest: str, summary: RunSummary | None) -> list[str]:
    """The names under which the last run may have found the model."""
    if summary is None:
        return []
    models = [model for collection in summary.collections for model in collection.models if model.digest == digest]
    options = summary.options
    chosen = [each.name for each in options.models] if options else []
    chosen += [each.model for each in options.sparse if each.model] if options else []
    return [*map(_word, models), *(each for each in chosen if model_name(each) == name)]


def _word(model: ModelSummary) -> str:
    return model.path if model.source == "folder" else model.hub_id or model.model
