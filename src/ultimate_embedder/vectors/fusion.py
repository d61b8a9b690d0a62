"""How vectors of several models become what is exported and searched. Documents and queries go through the same lines.

named               one vector a model, each under its name; weights matter when similarities are summed
concat              unit vectors, each scaled by the root of its weight, end to end: the dot product of two such
                    vectors is exactly the weighted sum of the models' cosines
weighted_average    the weighted mean of unit vectors, of unit length again; all must have the same dimension
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ultimate_embedder.config import FusionMethod
from ultimate_embedder.errors import UsageError
from ultimate_embedder.types import UNNAMED, VectorSpec
from ultimate_embedder.vectors.store import VectorStore, fingerprint

Vectors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Member:
    """One model of a fusion: its share, and the dimension that its vectors are cut to."""

    name: str
    weight: float
    dim: int


@dataclass(frozen=True)
class Fusion:
    """What is done with the members' vectors; weights sum to one."""

    method: FusionMethod
    members: tuple[Member, ...]

    @property
    def vectors(self) -> tuple[VectorSpec, ...]:
        """The exported vectors."""
        if len(self.members) > 1 and self.method == "named":
            return tuple(VectorSpec(member.name, member.dim) for member in self.members)
        if len(self.members) > 1 and self.method == "concat":
            return (VectorSpec(UNNAMED, sum(member.dim for member in self.members)),)
        return (VectorSpec(UNNAMED, self.members[0].dim),)

    def fuse(self, vectors: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Join the members' vectors, given in their order, row by row."""
        if len(self.members) == 1:
            return {UNNAMED: vectors[0]}
        if self.method == "named":
            return {member.name: each for member, each in zip(self.members, vectors, strict=True)}
        units = [shorten(each, member.dim) for member, each in zip(self.members, vectors, strict=True)]
        weights = [member.weight for member in self.members]
        if self.method == "concat":
            scaled = [unit * np.float32(weight**0.5) for unit, weight in zip(units, weights, strict=True)]
            return {UNNAMED: np.concatenate(scaled, axis=1)}
        mean = sum(unit * np.float32(weight) for unit, weight in zip(units, weights, strict=True))
        return {UNNAMED: _unit(np.asarray(mean))}

    def similarity(self, query: Vectors, documents: Vectors) -> np.ndarray:
        """How near each document is to the query: the cosine, or the weighted sum of the models' cosines."""
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


def plan_fusion(method: FusionMethod, candidates: Sequence[Candidate]) -> Fusion:
    """Normalise the weights, and for an average find the dimension that all have or can be cut to."""
    total = sum(candidate.weight for candidate in candidates)
    common = common_dim(candidates) if method == "weighted_average" and len(candidates) > 1 else None
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


class FusedVectors:
    """The exported vectors of a collection, read from one store a model, a block at a time."""

    def __init__(self, stores: Sequence[VectorStore], fusion: Fusion) -> None:
        self.fusion = fusion
        self.identity = _identity(stores, fusion)
        """Equal identities mean equal vectors."""
        self._stores = stores

    @property
    def vectors(self) -> tuple[VectorSpec, ...]:
        """The exported vectors."""
        return self.fusion.vectors

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether every model gave it a vector."""
        return np.asarray(np.logical_and.reduce([store.holds(keys) for store in self._stores]))

    def without(self, keys: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """The models that left texts without a vector, each with a mask of these."""
        missing = [(store.identity.model, ~store.holds(keys)) for store in self._stores]
        return [(model, mask) for model, mask in missing if mask.any()]

    def read(self, keys: np.ndarray) -> dict[str, np.ndarray]:
        """The vectors of `keys`, which must be held."""
        return self.fusion.fuse([store.read(keys) for store in self._stores])


def shorten(vectors: np.ndarray, dim: int | None) -> np.ndarray:
    """Cut vectors to their first `dim` numbers (Matryoshka) and give them unit length again."""
    return _unit(vectors[:, :dim])


def _unit(vectors: np.ndarray) -> np.ndarray:
    rows = np.atleast_2d(vectors).astype(np.float32, copy=False)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _cuts(candidate: Candidate) -> str:
    shorter = [dim for dim in candidate.shorter_dims if dim < candidate.dim]
    return f" or {', '.join(map(str, shorter))}" if shorter else ""


def _identity(stores: Sequence[VectorStore], fusion: Fusion) -> str:
    described = json.dumps(asdict(fusion) if len(stores) > 1 else None, sort_keys=True)
    contents = [f"{fingerprint(store.identity)}:{store.digest()}" for store in stores]
    return hashlib.sha256("\n".join([described, *contents]).encode()).hexdigest()[:32]
