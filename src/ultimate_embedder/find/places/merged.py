"""Search several collections as if they were one: their vectors are of the same models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from ultimate_embedder.find.filters import Condition, Payload
from ultimate_embedder.find.places.base import Found, Place, QueryLeg

MARK = ":"


class MergedPlace(Place):
    """Several places; a key begins with the number of its place."""

    def __init__(self, places: Sequence[Place]) -> None:
        super().__init__()
        self.label = " and ".join(place.label for place in places)
        self.points = sum(place.points for place in places)
        self._places = tuple(places)

    def nearest(self, leg: QueryLeg, limit: int, conditions: Sequence[Condition]) -> list[Found]:
        """The points with the highest scores of all, best first."""
        found = [
            Found(f"{number}{MARK}{key}", score)
            for number, place in enumerate(self._places)
            for key, score in place.nearest(leg, limit, conditions)
        ]
        return sorted(found, key=lambda each: (-each.score, each.key))[:limit]

    def scores(self, leg: QueryLeg, keys: Sequence[str]) -> dict[str, float]:
        """The exact scores of these points."""
        found: dict[str, float] = {}
        for number, place in enumerate(self._places):
            mine = place.scores(leg, _keys_of(number, keys))
            found |= {f"{number}{MARK}{key}": score for key, score in mine.items()}
        return found

    def payloads(self, keys: Sequence[str]) -> list[dict[str, Any]]:
        """The payloads of points, in the order of `keys`."""
        found: dict[str, dict[str, Any]] = {}
        for number, place in enumerate(self._places):
            mine = _keys_of(number, keys)
            payloads = place.payloads(mine) if mine else []
            found |= {f"{number}{MARK}{key}": each for key, each in zip(mine, payloads, strict=True)}
        return [found[key] for key in keys]

    def has_key(self, condition: Condition) -> bool:
        """Whether a payload of any place has something under the path of a condition."""
        return any(place.has_key(condition) for place in self._places)

    def sample(self, count: int) -> Iterator[Payload]:
        """Some payloads of each place."""
        return chain.from_iterable(place.sample(count) for place in self._places)

    def point_id(self, key: str) -> str:
        """The id without the number of its place."""
        return key.partition(MARK)[2]

    def close(self) -> None:
        """Close all of them."""
        for place in self._places:
            place.close()


def _keys_of(number: int, keys: Sequence[str]) -> list[str]:
    mark = f"{number}{MARK}"
    return [key.removeprefix(mark) for key in keys if key.startswith(mark)]
