"""The names under which clients ask for vectors: of which collection, and of which of its models."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from ultimate_embedder.config import suggest
from ultimate_embedder.models import find_spec
from ultimate_embedder.summary import CollectionSummary, RunSummary
from ultimate_embedder.types import UNNAMED

FUSED = "fused"


@dataclass(frozen=True)
class ServedVector:
    """A dense vector of a collection: how it is called, and how it is computed."""

    name: str
    """`COLLECTION/MODEL`; `COLLECTION/fused` if several models make one vector."""
    collection: str
    vector: str
    """Its name in the collection; '' if points have one vector."""
    models: tuple[str, ...]
    """The models that it needs."""
    dim: int
    shorter_dims: tuple[int, ...]
    """Matryoshka: what else it may be truncated to."""
    recipe: tuple[object, ...]
    """Vectors with the same recipe are encoded alike, in whichever collection they are."""


@dataclass(frozen=True)
class Catalogue:
    """All vectors that can be asked for, by each of their names."""

    vectors: tuple[ServedVector, ...]
    by_name: dict[str, ServedVector]
    created: int = 0
    """When the run began, in seconds since 1970."""

    def find(self, name: str) -> ServedVector | None:
        """The vector of that name."""
        return self.by_name.get(name)

    def suggestion(self, name: str) -> str:
        """What may have been meant, and all names."""
        return f"{suggest(name, self.by_name)} The models are: {', '.join(self.by_name)}."


def make_catalogue(summary: RunSummary) -> Catalogue:
    """What the last run into an output tells how to encode."""
    vectors = [vector for each in summary.collections for vector in _vectors(each, summary)]
    by_name = {vector.name: vector for vector in vectors}
    # a short name is good for all collections that have the model, if they agree on how it encodes
    for short in dict.fromkeys(_short(vector) for vector in vectors):
        same = [vector for vector in vectors if _short(vector) == short]
        if short not in by_name and len({vector.recipe for vector in same}) == 1:
            by_name[short] = same[0]
    for vector in vectors:
        alone = sum(each.collection == vector.collection for each in vectors) == 1
        if alone:
            by_name.setdefault(vector.collection, vector)
    return Catalogue(tuple(vectors), by_name, _seconds(summary.started_at))


def _seconds(started_at: str) -> int:
    try:
        return int(datetime.datetime.fromisoformat(started_at).timestamp())
    except (ValueError, OverflowError):
        return 0


def _short(vector: ServedVector) -> str:
    return vector.name.removeprefix(f"{vector.collection}/")


def _vectors(collection: CollectionSummary, summary: RunSummary) -> Iterable[ServedVector]:
    if summary.options is None or not collection.passes or not collection.models:
        return
    digests = {model.model: model.digest for model in collection.models}
    passes = {each.model: each for each in collection.passes if each.model in digests}
    for spec in collection.vectors:
        if spec.kind != "dense" or not spec.dim:
            continue
        models = tuple(passes) if spec.name == UNNAMED else (spec.name,)
        if not models or not set(models) <= set(passes):
            continue
        alone = find_spec(models[0]) if len(models) == 1 else None
        shorter = tuple(dim for dim in alone.matryoshka_dims if dim < spec.dim) if alone else ()
        weights = tuple(passes[model].weight for model in models) if len(models) > 1 else ()
        yield ServedVector(
            name=f"{collection.collection}/{models[0] if len(models) == 1 else FUSED}",
            collection=collection.collection,
            vector=spec.name,
            models=models,
            dim=spec.dim,
            shorter_dims=shorter,
            recipe=(tuple((model, digests[model]) for model in models), weights, spec.dim),
        )
