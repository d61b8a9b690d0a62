"""Fusion: combine the vectors of several models, in the same way for documents and queries.

named               one vector per model, each under its name; weights apply when similarities are summed
concat              unit vectors, each scaled by the root of its weight, concatenated: the dot product of two such
                    vectors is the weighted sum of the models' cosines
weighted_average    the normalised weighted mean of unit vectors; all must have the same dimension
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultimate_embedder.errors import UsageError
from ultimate_embedder.types import UNNAMED, VectorSpec

if TYPE_CHECKING:  # imported where it is used: the command line needs only the names of the methods
    import numpy as np

Vectors = Mapping[str, "np.ndarray"]


@dataclass(frozen=True)
class Member:
    """One model of a fusion: its weight, and the dimension that its vectors are truncated to."""

    name: str
    weight: float
    dim: int


@dataclass(frozen=True)
class FusionMethod:
    """A way to combine the vectors of several models."""

    vectors: Callable[[Sequence[Member]], tuple[VectorSpec, ...]]
    """The vectors of the result."""
    join: Callable[[Sequence[Member], Sequence[np.ndarray]], dict[str, np.ndarray]]
    """Combines vectors, given in the members' order, into vectors by name."""
    needs_one_dim: bool = False
    """Whether all members must have, or be truncated to, the same dimension."""


def _join_named(members: Sequence[Member], vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {member.name: each for member, each in zip(members, vectors, strict=True)}


def _join_concat(members: Sequence[Member], vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    import numpy as np

    pairs = zip(members, vectors, strict=True)
    scaled = [shorten(each, member.dim) * np.float32(member.weight**0.5) for member, each in pairs]
    return {UNNAMED: np.concatenate(scaled, axis=1)}


def _join_average(members: Sequence[Member], vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    import numpy as np

    pairs = zip(members, vectors, strict=True)
    mean = sum(shorten(each, member.dim) * np.float32(member.weight) for member, each in pairs)
    return {UNNAMED: _unit(np.asarray(mean))}


FUSION_METHODS: dict[str, FusionMethod] = {
    "named": FusionMethod(
        lambda members: tuple(VectorSpec(member.name, member.dim) for member in members), _join_named
    ),
    "concat": FusionMethod(lambda members: (VectorSpec(UNNAMED, sum(member.dim for member in members)),), _join_concat),
    "weighted_average": FusionMethod(
        lambda members: (VectorSpec(UNNAMED, members[0].dim),), _join_average, needs_one_dim=True
    ),
}
FUSIONS: tuple[str, ...] = tuple(FUSION_METHODS)


@dataclass(frozen=True)
class Fusion:
    """A fusion method and its members; weights sum to one."""

    method: str
    members: tuple[Member, ...]

    @property
    def vectors(self) -> tuple[VectorSpec, ...]:
        """The exported vectors."""
        if len(self.members) == 1:
            return (VectorSpec(UNNAMED, self.members[0].dim),)
        return FUSION_METHODS[self.method].vectors(self.members)

    def fuse(self, vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Combine the members' vectors, given in their order."""
        if len(self.members) == 1:
            return {UNNAMED: vectors[0]}
        return FUSION_METHODS[self.method].join(self.members, vectors)

    def similarity(self, query: Vectors, documents: Vectors) -> np.ndarray:
        """Similarity of each document to the query: the cosine, or the weighted sum of the models' cosines."""
        import numpy as np

        if len(self.vectors) == 1:
            return np.asarray(_unit(documents[UNNAMED]) @ _unit(query[UNNAMED])[0])
        parts = [
            member.weight * (_unit(documents[member.name]) @ _unit(query[member.name])[0]) for member in self.members
        ]
        return np.asarray(sum(parts))


@dataclass(frozen=True)
class Candidate:
    """A model to be fused: the dimension of its vectors, and its Matryoshka dimensions."""

    name: str
    weight: float
    dim: int
    shorter_dims: tuple[int, ...] = ()


def plan_fusion(method: str, candidates: Sequence[Candidate]) -> Fusion:
    """Normalise the weights; for an average, find the common dimension."""
    total = sum(candidate.weight for candidate in candidates)
    needs_one_dim = FUSION_METHODS[method].needs_one_dim and len(candidates) > 1
    common = common_dim(candidates) if needs_one_dim else None
    members = [
        Member(candidate.name, candidate.weight / total if total else 0.0, common or candidate.dim)
        for candidate in candidates
    ]
    return Fusion(method, tuple(members))


def common_dim(candidates: Sequence[Candidate]) -> int:
    """The largest dimension that every model has or can be truncated to (Matryoshka)."""
    possible = set.intersection(*({each.dim, *each.shorter_dims} for each in candidates))
    reachable = [dim for dim in possible if all(dim <= each.dim for each in candidates)]
    if reachable:
        return max(reachable)
    dims = ", ".join(f"{each.name} has {each.dim}{_shorter_dims(each)}" for each in candidates)
    raise UsageError(
        f"--fusion weighted_average needs vectors of the same dimension, and these models have none in common: {dims}. "
        "Use --fusion concat or --fusion named, or other models."
    )


def shorten(vectors: np.ndarray, dim: int | None) -> np.ndarray:
    """Truncate vectors to their first `dim` dimensions (Matryoshka) and normalise them."""
    return _unit(vectors[:, :dim])


def _unit(vectors: np.ndarray) -> np.ndarray:
    import numpy as np

    rows = np.atleast_2d(vectors).astype(np.float32, copy=False)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _shorter_dims(candidate: Candidate) -> str:
    shorter = [dim for dim in candidate.shorter_dims if dim < candidate.dim]
    return f" or {', '.join(map(str, shorter))}" if shorter else ""
