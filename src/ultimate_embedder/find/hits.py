"""What a search gives: hits, and how they were found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from ultimate_embedder.markup import html_table
from ultimate_embedder.terminal import counted

JSON_VERSION = 1
SHOWN_CHARACTERS = 300  # of a text in a notebook


@dataclass(frozen=True)
class Hit:
    """A chunk that was found."""

    rank: int
    """From 1."""
    score: float
    """What it was ranked by: a similarity, a fused score, or that of the reranker."""
    scores: Mapping[str, float | None]
    """The score of each leg (a model, or a sparse vector); None where a leg cannot find it."""
    chunk_id: str
    point_id: str
    collection: str
    source: str
    """The document, as the metadata of the chunk name it, else the chunk file."""
    section: tuple[str, ...]
    """Headings above the chunk, the outermost first."""
    text: str
    payload: Mapping[str, Any] = field(repr=False)
    """Everything that is stored with the point."""
    rank_before: int | None = None
    """The rank that it had before it was reranked."""

    def as_dict(self) -> dict[str, Any]:
        """As `search --json` prints it."""
        return {**dataclasses.asdict(self), "scores": dict(self.scores), "section": list(self.section)}


@dataclass(frozen=True)
class UsedLeg:
    """A leg of a search: what made its vectors, and its weight in the fusion."""

    name: str
    weight: float
    kind: str = "dense"


@dataclass(frozen=True)
class Reranked:
    """What a reranker cost and what it changed."""

    model: str
    device: str
    dtype: str
    pairs: int
    tokens: int
    truncated: int
    """Texts that are longer than the model can read: their ends were not read."""
    batches: int
    seconds: float
    """Without loading the model."""
    moved_up: int
    """Of the hits that are shown."""
    moved_down: int
    new_in_top: int
    """Hits that would not be shown without the reranker."""
    mitigations: tuple[str, ...] = ()
    """Kinds of decisions that memory made necessary."""

    def __str__(self) -> str:
        cut = f", {self.truncated} of them truncated" if self.truncated else ""
        cost = f"{counted(self.pairs, 'pair')} ({self.tokens:,} tokens{cut}) in {self.seconds:.1f} s on {self.device}"
        change = f"of the hits {self.moved_up} moved up, {self.moved_down} down, {self.new_in_top} new"
        return f"{self.model}: {cost}; {change}"


@dataclass(frozen=True)
class Hits(Sequence[Hit]):
    """The hits of one question, best first: a sequence, and a table in a notebook."""

    question: str
    hits: tuple[Hit, ...]
    collections: tuple[str, ...]
    place: str
    """Where was searched."""
    points: int
    """Points there."""
    legs: tuple[UsedLeg, ...]
    fusion: str | None
    """How scores of several legs were fused; None with one leg."""
    fused_by: str | None = None
    """`engine` or `program`; None with one leg."""
    candidates: int | None = None
    """Different points that the legs were fused over."""
    reranked: Reranked | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time by stage: open, load, encode, search, rerank."""

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | Sequence[Hit]:
        return self.hits[place]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @property
    def using(self) -> str:
        """The legs and the fusion in words."""
        equal = len({leg.weight for leg in self.legs}) == 1
        names = [leg.name if equal or leg.weight == 1 else f"{leg.weight:g} x {leg.name}" for leg in self.legs]
        return f"{self.fusion} of {' + '.join(names)}" if self.fusion else names[0]

    @property
    def why_empty(self) -> str:
        """What is to be said if there are no hits."""
        told = f"Nothing was found among {counted(self.points, 'point')}."
        if all(leg.kind == "sparse" for leg in self.legs):
            return f"{told} Sparse vectors find only chunks that have a word of the question."
        return told

    def as_dict(self) -> dict[str, Any]:
        """As `search --json` prints it."""
        return {
            "version": JSON_VERSION,
            "question": self.question,
            "collections": list(self.collections),
            "place": self.place,
            "points": self.points,
            "legs": [dataclasses.asdict(leg) for leg in self.legs],
            "fusion": self.fusion,
            "fused_by": self.fused_by,
            "candidates": self.candidates,
            "reranked": dataclasses.asdict(self.reranked) if self.reranked else None,
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "hits": [hit.as_dict() for hit in self.hits],
        }

    def __repr__(self) -> str:
        return f"<Hits: {counted(len(self.hits), 'hit')} for {self.question!r}, by {self.using}>"

    def _repr_html_(self) -> str:
        legs = [leg.name for leg in self.legs] if len(self.legs) > 1 else []
        headings = ("", "score", *legs, "source", "section", "text")
        rows = [
            (
                hit.rank,
                f"{hit.score:.3f}",
                *(_cell(hit.scores.get(name)) for name in legs),
                hit.source,
                " > ".join(hit.section),
                hit.text[:SHOWN_CHARACTERS],
            )
            for hit in self.hits
        ]
        notes = [f"{self.using}; {counted(self.points, 'point')}", *([str(self.reranked)] if self.reranked else [])]
        return html_table(self.question, headings, rows, notes)


def _cell(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"
