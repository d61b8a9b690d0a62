"""What every place offers that can be searched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ultimate_embedder.find.filters import Condition, Payload, place_key
from ultimate_embedder.sparse import SparseVectors
from ultimate_embedder.types import VectorKind

ENGINE_RRF_K = 61  # Qdrant counts ranks from 0: its 61 is the 60 of the paper
ENGINE_FUSIONS = ("rrf", "dbsf")
"""Fusions that Qdrant has; without weights they give what ours do."""


@dataclass(frozen=True)
class QueryLeg:
    """A query as one vector of the points is searched with it."""

    name: str
    """Of the vector; '' if points have one."""
    label: str
    """What made the vector: shown to people."""
    vector: np.ndarray | SparseVectors
    """Of a sparse vector one row."""
    weight: float = 1.0

    @property
    def kind(self) -> VectorKind:
        """Of the vector."""
        return "sparse" if isinstance(self.vector, SparseVectors) else "dense"

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be found with it: a sparse vector without values, of a question without known words."""
        return isinstance(self.vector, SparseVectors) and not len(self.vector.indices)

    def defaults(self, keys: Sequence[str]) -> dict[str, float]:
        """The scores of points that the leg does not find: 0 for a sparse vector that shares no word with them."""
        return dict.fromkeys(keys, 0.0) if self.kind == "sparse" else {}


class Found(NamedTuple):
    """A point and its score."""

    key: str
    """Its id as text."""
    score: float


class Place(ABC):
    """A collection of points that can be searched. Conditions are given as they were typed."""

    label: str
    """Where it is, for people."""
    points: int

    def __init__(self) -> None:
        self._placed: dict[Condition, Condition | None] = {}

    @abstractmethod
    def nearest(self, leg: QueryLeg, limit: int, conditions: Sequence[Condition]) -> list[Found]:
        """The points with the highest scores, best first."""

    @abstractmethod
    def scores(self, leg: QueryLeg, keys: Sequence[str]) -> dict[str, float]:
        """The exact scores of these points; those that the leg cannot find at all are left out."""

    def fused(
        self, method: str, legs: Sequence[QueryLeg], depth: int, conditions: Sequence[Condition]
    ) -> list[Found] | None:
        """All candidates (the `depth` best of each leg), fused with equal weights; None if the place cannot do that."""
        return None

    @abstractmethod
    def payloads(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The payloads of points, in the order of `keys`."""

    @abstractmethod
    def has_key(self, condition: Condition) -> bool:
        """Whether a payload has something under the path of a condition."""

    @abstractmethod
    def sample(self, count: int) -> Iterator[Payload]:
        """Some payloads, to see which keys they have."""

    def point_id(self, key: str) -> str:
        """The id of a point as Qdrant has it, by its key here."""
        return key

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Free what is held open."""

    def placed(self, conditions: Sequence[Condition]) -> list[Condition] | None:
        """The conditions with their keys where payloads have them; None if no payload has one of the keys."""
        for condition in conditions:
            if condition not in self._placed:
                self._placed[condition] = place_key(condition, self.has_key)
        found = [self._placed[condition] for condition in conditions]
        placed = [each for each in found if each is not None]
        return placed if len(placed) == len(found) else None


def point_key(point_id: Any) -> str:
    """An id as text: ours are UUIDs, points that others have added may have numbers."""
    return str(point_id)


def engine_id(key: str) -> str | int:
    """The id as Qdrant has it."""
    return int(key) if key.isdigit() else key
