"""The models of an output: found again on this machine, and run on texts as they were run on its chunks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ultimate_embedder.batching import plan_batches
from ultimate_embedder.config import HubAccess, sparse_word
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import Emit
from ultimate_embedder.models import Encoder, SegmentCutter, find_spec, model_name, resolve_model
from ultimate_embedder.summary import ModelSummary, RunSummary
from ultimate_embedder.types import ModelKind, ResolvedModel
from ultimate_embedder.vectors import pool_largest, pool_texts, shorten

SAME_MODEL = "A query must be encoded by the model that made the vectors: if it is in another folder, give --model DIR."


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


def find_same_model(
    name: str,
    digest: str,
    summary: RunSummary | None,
    access: HubAccess,
    emit: Emit,
    folders: Sequence[str],
    kind: ModelKind = "embedder",
) -> ResolvedModel:
    """The same for a question: the error says what to do."""
    try:
        return resolve_same_model(name, digest, summary, access, kind=kind, emit=emit, folders=folders)
    except ModelError as error:
        raise ModelError(f"{str(error).rstrip('.')}. {SAME_MODEL}") from error


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


def typed_words(summary: RunSummary | None) -> dict[str, str]:
    """What embed was given for models and sparse vectors, by their names in the output."""
    options = summary.options if summary else None
    if options is None:
        return {}
    words = {model_name(each.name): each.name for each in options.models}
    for each in options.sparse:
        name = model_name(each.model) if each.model else each.method
        words[name] = sparse_word(each.method, each.model, (each.bm25 or {}).get("language"))
    return words


def _word(model: ModelSummary) -> str:
    return model.path if model.source == "folder" else model.hub_id or model.model
