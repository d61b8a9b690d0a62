"""How vectors of several models become what is exported and searched. Documents and queries go through the same lines.

named               one vector a model, each under its name; weights matter when similarities are summed
concat              unit vectors, each scaled by the root of its weight, end to end: the dot product of two such
                    vectors is exactly the weighted sum of the models' cosines
weighted_average    the weighted mean of unit vectors, of unit length again; all must have the same dimension
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultimate_embedder.errors import UsageError
from ultimate_embedder.types import UNNAMED, VectorSpec

if TYPE_CHECKING:  # numpy is imported where it is used: the command line wants the names of the methods only
    import numpy as np

Vectors = Mapping[str, "np.ndarray"]


@dataclass(frozen=True)
class Member:
    """One model of a fusion: its share, and the dimension that its vectors are cut to."""

    name: str
    weight: float
    dim: int


@dataclass(frozen=True)
class FusionMethod:
    """A way to join the vectors of several models."""

    vectors: Callable[[Sequence[Member]], tuple[VectorSpec, ...]]
    """What comes out."""
    join: Callable[[Sequence[Member], Sequence[np.ndarray]], dict[str, np.ndarray]]
    """Vectors in the members' order, row by row, to vectors by name."""
    needs_one_dim: bool = False
    """Whether all members must have, or be cut to, the same dimension."""


def _join_named(members: Sequence[Member], vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {member.name: each for member, each in zip(members, vectors, strict=True)}


def _join_end_to_end(members: Sequence[Member], vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
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
    "concat": FusionMethod(
        lambda members: (VectorSpec(UNNAMED, sum(member.dim for member in members)),), _join_end_to_end
    ),
    "weighted_average": FusionMethod(
        lambda members: (VectorSpec(UNNAMED, members[0].dim),), _join_average, needs_one_dim=True
    ),
}
FUSIONS: tuple[str, ...] = tuple(FUSION_METHODS)


@dataclass(frozen=True)
class Fusion:
    """What is done with the members' vectors; weights sum to one."""

    method: str
    members: tuple[Member, ...]

    @property
    def vectors(self) -> tuple[VectorSpec, ...]:
        """The exported vectors."""
        if len(self.members) == 1:
            return (VectorSpec(UNNAMED, self.members[0].dim),)
        return FUSION_METHODS[self.method].vectors(self.members)

    def fuse(self, vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Join the members' vectors, given in their order, row by row."""
        if len(self.members) == 1:
            return {UNNAMED: vectors[0]}
        return FUSION_METHODS[self.method].join(self.members, vectors)

    def similarity(self, query: Vectors, documents: Vectors) -> np.ndarray:
        """How near each document is to the query: the cosine, or the weighted sum of the models' cosines."""
        import numpy as np

        if len(self.vectors) == 1:
            return np.asarray(_unit(documents[UNNAMED]) @ _unit(query[UNNAMED])[0])
        parts = [
            member.weight * (_unit(documents[member.name]) @ _unit(query[member.name])[0]) for member in self.members
        ]
        return np.asarray(sum(parts))


@dataclass(frozen=True)
class Candidate:
    """A model that is to be fused: the dimension of its vectors, and the shorter ones it was trained for."""

    name: str
    weight: float
    dim: int
    shorter_dims: tuple[int, ...] = ()


def plan_fusion(method: str, candidates: Sequence[Candidate]) -> Fusion:
    """Normalise the weights, and for an average find the dimension that all have or can be cut to."""
    total = sum(candidate.weight for candidate in candidates)
    needs_one_dim = FUSION_METHODS[method].needs_one_dim and len(candidates) > 1
    common = common_dim(candidates) if needs_one_dim else None
    members = [
        Member(candidate.name, candidate.weight / total if total else 0.0, common or candidate.dim)
        for candidate in candidates
    ]
    return Fusion(method, tuple(members))


def common_dim(candidates: Sequence[Candidate]) -> int:
    """The largest dimension that every model has, or was trained to be cut to."""
    possible = set.intersection(*({each.dim, *each.shorter_dims} for each in candidates))
    reachable = [dim for dim in possible if all(dim <= each.dim for each in candidates)]
    if reachable:
        return max(reachable)
    dims = ", ".join(f"{each.name} has {each.dim}{_cuts(each)}" for each in candidates)
    raise UsageError(
        f"--fusion weighted_average needs vectors of one dimension, and these models share none: {dims}. "
        "Use --fusion concat or --fusion named, or other models."
    )


def shorten(vectors: np.ndarray, dim: int | None) -> np.ndarray:
    """Cut vectors to their first `dim` numbers (Matryoshka) and give them unit length again."""
    return _unit(vectors[:, :dim])


def _unit(vectors: np.ndarray) -> np.ndarray:
    import numpy as np

    rows = np.atleast_2d(vectors).astype(np.float32, copy=False)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _cuts(candidate: Candidate) -> str:
    shorter = [dim for dim in candidate.shorter_dims if dim < candidate.dim]
    return f" or {', '.join(map(str, shorter))}" if shorter else ""
