"""Which vectors a query is searched with, and what each weighs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ultimate_embedder.config import suggest
from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.options import FUSED, HYBRID, SPARSE, USING_WORDS
from ultimate_embedder.find.recorded import RecordedVectors
from ultimate_embedder.types import UNNAMED, VectorSpec

SPARSE_WEIGHTS = {"zscore": 0.5}
"""What a sparse leg weighs beside dense ones of 1, by method; 1 in the others."""


def choose_vectors(using: Sequence[str], recorded: RecordedVectors, name: str) -> list[VectorSpec]:
    """The vectors to search with: `fused`, `sparse`, `hybrid`, or models by name; by default all that there are."""
    dense = [spec for spec in recorded.vectors if spec.kind == "dense"]
    sparse = [spec for spec in recorded.vectors if spec.kind == "sparse"]
    if not using:
        return [*dense, *sparse]
    chosen: list[VectorSpec] = []
    for word in using:
        if word in (SPARSE, HYBRID) and not sparse:
            raise UsageError(
                f"--using {word}: {name} has no sparse vectors. Run embed again with --sparse bm25: vectors that are "
                "stored are not computed again."
            )
        by_word = {FUSED: dense, SPARSE: sparse, HYBRID: [*dense, *sparse]}
        chosen += by_word[word] if word in by_word else [_named(word, recorded, name)]
    return list(dict.fromkeys(chosen))


def leg_weights(
    specs: Sequence[VectorSpec], recorded: RecordedVectors, fusion: str, given: Mapping[str, float] | None
) -> list[float]:
    """A weight for each vector: as given, else as the output records them for its models (1 on average)."""
    labels = [recorded.label(spec.name) for spec in specs]
    if given is not None:
        if unknown := [word for word in given if word not in labels]:
            raise UsageError(f"--weights {unknown[0]}: the legs are {', '.join(labels)}.{suggest(unknown[0], labels)}")
        return [given.get(label, 1.0) for label in labels]
    weights = {member.name: member.weight for member in recorded.fusion.members}
    dense = relative_weights({spec.name: weights.get(spec.name, 1.0) for spec in specs if spec.kind == "dense"})
    beside = SPARSE_WEIGHTS.get(fusion, 1.0) if dense else 1.0
    return [dense.get(spec.name, beside) for spec in specs]


def relative_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights of models that are 1 on average; all are 1 if none weighs anything."""
    mean = sum(weights.values()) / max(1, len(weights))
    return {name: weight / mean if mean else 1.0 for name, weight in weights.items()}


def _named(word: str, recorded: RecordedVectors, name: str) -> VectorSpec:
    by_label = {recorded.label(spec.name): spec for spec in recorded.vectors}
    if word in by_label:
        return by_label[word]
    models = [model.name for model in recorded.models]
    if word in models and UNNAMED in [spec.name for spec in recorded.vectors]:
        raise UsageError(
            f"--using {word}: {name} has one vector per point, made of {' and '.join(models)}. Use --using {FUSED}, or "
            "run embed again with --fusion named: vectors that are stored are not computed again."
        )
    words = [*by_label, *USING_WORDS]
    raise UsageError(f"--using {word}: the vectors of {name} are {', '.join(by_label)}.{suggest(word, words)}")
