"""A comparison of two outputs, as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ultimate_embedder.find import TextCounts, VectorPair
from ultimate_embedder.markup import html_table

HEADINGS = ("collection", "vectors", "common texts", "mean cosine", "worst cosine", "neighbours in common")


@dataclass(frozen=True)
class Difference:
    """A value that is not the same in both; None where there is none."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True)
class Figure:
    """A number of both; None where it was not measured."""

    name: str
    unit: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """B divided by A, if both are there."""
        return self.b / self.a if self.a and self.b is not None else None


@dataclass(frozen=True)
class PassComparison:
    """What a model did in both runs, or one model and the other in its place; None where there is none."""

    a: str | None
    b: str | None
    figures: tuple[Figure, ...]

    @property
    def name(self) -> str:
        """The model, or both."""
        return self.a or self.b or "" if self.a == self.b or not self.a or not self.b else f"{self.a} → {self.b}"


@dataclass(frozen=True)
class RunSide:
    """One of the two outputs: its folder, and the state of its last run."""

    folder: str
    state: str
    started_at: str
    seconds: float | None


@dataclass(frozen=True)
class CollectionComparison:
    """One collection in both outputs."""

    a: str
    b: str
    counts: tuple[Figure, ...] = ()
    timings: tuple[Figure, ...] = ()
    models: tuple[Difference, ...] = ()
    """What differs of the models: commits, files, token limits, prompts."""
    passes: tuple[PassComparison, ...] = ()
    mitigations: tuple[Figure, ...] = ()
    """How often each was taken."""
    texts: TextCounts | None = None
    vectors: tuple[VectorPair, ...] = ()
    problem: str | None = None
    """Why vectors were not compared."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Two outputs side by side."""

    a: RunSide
    b: RunSide
    options: tuple[Difference, ...] = ()
    environment: tuple[Difference, ...] = ()
    collections: tuple[CollectionComparison, ...] = ()
    only_a: tuple[str, ...] = ()
    """Collections that only A has."""
    only_b: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    schema_version: int = field(default=1)

    @property
    def complete(self) -> bool:
        """Whether vectors of every collection were compared."""
        return bool(self.collections) and all(each.problem is None for each in self.collections)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON data."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        names = ", ".join(each.a for each in self.collections) or "nothing in common"
        return f"<Comparison of {self.a.folder} and {self.b.folder}: {names}>"

    def _repr_html_(self) -> str:
        rows = [_cells(each, pair) for each in self.collections for pair in each.vectors]
        notes = [f"{each.a}: {each.problem}" for each in self.collections if each.problem]
        return html_table(f"{self.a.folder} and {self.b.folder}", HEADINGS, rows, [*self.notes, *notes])


def _cells(collection: CollectionComparison, pair: VectorPair) -> list[object]:
    cosines, near = pair.cosines, pair.neighbours
    return [
        collection.a,
        pair.a if pair.a == pair.b else f"{pair.a} → {pair.b}",
        pair.texts,
        f"{cosines.mean:.6f}" if cosines else "-",
        f"{cosines.worst:.6f}" if cosines else "-",
        f"{near.mean:.1%} of {near.neighbours}" if near else "-",
    ]
