"""The names under which clients ask for vectors: of which collection, and of which of its models."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field

from ultimate_embedder.config import suggest
from ultimate_embedder.errors import UsageError
from ultimate_embedder.find import FUSED, RecordedModel, RecordedVectors, read_recorded
from ultimate_embedder.models import find_spec
from ultimate_embedder.output import Output
from ultimate_embedder.types import UNNAMED
from ultimate_embedder.vectors import Fusion


@dataclass(frozen=True)
class ServedVector:
    """A dense vector of a collection: how it is called, and how it is computed."""

    name: str
    """`COLLECTION/MODEL`; `COLLECTION/fused` if several models make one vector."""
    collection: str
    models: tuple[RecordedModel, ...]
    """The models that it needs."""
    fusion: Fusion | None
    """How their vectors become one; None for one model."""
    dim: int
    shorter_dims: tuple[int, ...]
    """Matryoshka: what else it may be truncated to."""

    @property
    def recipe(self) -> tuple[object, ...]:
        """Vectors with the same recipe are encoded alike, in whichever collection they are."""
        return self.models, self.fusion, self.dim

    @property
    def short_name(self) -> str:
        """Its name without the collection."""
        return self.name.removeprefix(f"{self.collection}/")


@dataclass(frozen=True)
class Catalogue:
    """All vectors that can be asked for, by each of their names."""

    vectors: tuple[ServedVector, ...]
    problems: dict[str, str] = field(default_factory=dict)
    """Why a collection is not among them."""
    created: int = 0
    """When the run began, in seconds since 1970."""
    by_name: dict[str, ServedVector] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", _names(self.vectors))

    @property
    def models(self) -> frozenset[RecordedModel]:
        """Every model of every vector."""
        return frozenset(model for vector in self.vectors for model in vector.models)

    def suggestion(self, name: str) -> str:
        """What may have been meant by a name that is unknown, and all names."""
        why = next((f" {problem}" for collection, problem in self.problems.items() if collection == name), "")
        return f"{why}{suggest(name, self.by_name)} The models are: {', '.join(self.by_name)}."


def read_catalogue(output: Output) -> Catalogue:
    """What the exports of an output, or its summary, tell how to encode."""
    vectors: list[ServedVector] = []
    problems: dict[str, str] = {}
    for name in output.collections:
        try:
            vectors += _vectors(name, read_recorded(output, name))
        except UsageError as error:
            problems[name] = str(error)
    summary, _ = output.try_summary()
    return Catalogue(tuple(vectors), problems, _seconds(summary.started_at) if summary else 0)


def _vectors(collection: str, recorded: RecordedVectors) -> Iterable[ServedVector]:
    for spec in recorded.vectors:
        if spec.kind != "dense" or not spec.dim:
            continue
        dense = {member.name for member in recorded.fusion.members}
        wanted = dense if spec.name == UNNAMED else {spec.name}
        models = tuple(model for model in recorded.models if model.name in wanted)
        if not models:
            continue
        alone = find_spec(models[0].name) if len(models) == 1 else None
        yield ServedVector(
            name=f"{collection}/{models[0].name if len(models) == 1 else FUSED}",
            collection=collection,
            models=models,
            fusion=recorded.fusion if len(models) > 1 else None,
            dim=spec.dim,
            shorter_dims=tuple(dim for dim in alone.matryoshka_dims if dim < spec.dim) if alone else (),
        )


def _names(vectors: tuple[ServedVector, ...]) -> dict[str, ServedVector]:
    by_name = {vector.name: vector for vector in vectors}
    # a short name is good for all collections that have the model, if they agree on how it encodes
    for short in dict.fromkeys(vector.short_name for vector in vectors):
        same = [vector for vector in vectors if vector.short_name == short]
        if len({vector.recipe for vector in same}) == 1:
            by_name.setdefault(short, same[0])
    for vector in vectors:
        if sum(each.collection == vector.collection for each in vectors) == 1:
            by_name.setdefault(vector.collection, vector)
    return by_name


def _seconds(started_at: str) -> int:
    try:
        return int(datetime.datetime.fromisoformat(started_at).timestamp())
    except (ValueError, OverflowError):
        return 0
