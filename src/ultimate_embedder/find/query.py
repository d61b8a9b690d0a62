"""Encode queries or documents with the models and the fusion of a collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.batching import plan_batches
from ultimate_embedder.config import HubAccess
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models import Encoder, SegmentCutter, find_spec, load_encoder, model_name, resolve_model
from ultimate_embedder.output import Output
from ultimate_embedder.summary import CollectionSummary, ModelSummary, RunSummary
from ultimate_embedder.types import ModelKind, ResolvedModel
from ultimate_embedder.vectors import Candidate, Fusion, plan_fusion, pool_largest, pool_texts, shorten


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


def open_query_encoder(output: Output, collection: str, access: HubAccess) -> QueryEncoder:
    """Load the models and the fusion of a collection, from the last run's summary; raises if a model has changed."""
    summary = output.read_summary()
    if summary is None or summary.options is None:
        raise UsageError(
            f"{output.folder} has no summary of a finished run, which is needed to encode queries. "
            "Run the same embed command again: stored vectors are reused."
        )
    options, entry = summary.options, _collection_summary(output, summary, collection)
    encoders = [
        load_encoder(
            resolve_same_model(model.model, model.digest, summary, access),
            "float32",
            "cpu",
            options.max_tokens,
            access.trusted,
            token_cap=options.token_cap,
        )
        for model in entry.dense_models
    ]
    pools = options.overlong == "pool"
    cutters = tuple(SegmentCutter(encoder, options.overlap) if pools else None for encoder in encoders)
    return QueryEncoder(tuple(encoders), summary_fusion(summary, entry), options.dim, cutters)


def summary_fusion(summary: RunSummary, collection: CollectionSummary) -> Fusion:
    """The fusion of a collection."""
    members = [
        Candidate(each.model, each.weight, each.dim, spec.matryoshka_dims if spec else ())
        for each in collection.dense_passes
        for spec in [find_spec(each.model)]
    ]
    return plan_fusion(summary.options.fusion if summary.options else "named", members)


def resolve_same_model(
    name: str, digest: str, summary: RunSummary | None, access: HubAccess, kind: ModelKind = "embedder"
) -> ResolvedModel:
    """Find the model of a pass, by the path in the summary or by name; its files must not have changed."""
    differs, problems = False, []
    words = [*_words(name, digest, summary), *([name] if find_spec(name) else [])]
    if not words:
        raise ModelError(f"{name} is not in the registry, and there is no summary with its path")
    for word in dict.fromkeys(words):
        try:
            model = resolve_model(word, access, kind=kind)
        except ModelError as error:
            problems.append(error)
            continue
        if model.digest == digest:
            return model
        differs = True
    if differs:
        raise ModelError(f"{name} on this machine is not the model of these vectors (its files differ)")
    raise problems[0]


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


def _collection_summary(output: Output, summary: RunSummary, collection: str) -> CollectionSummary:
    for each in summary.collections:
        if each.collection == collection and each.passes:
            return each
    raise UsageError(
        f"the last run into {output.folder} has no vectors of {collection!r}, so its summary does not say how "
        "they were computed. Run embed again for that collection, without --skip-existing."
    )


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
