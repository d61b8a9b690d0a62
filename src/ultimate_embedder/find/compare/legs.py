"""Legs: vectors of texts by the key of their text, of one model or of all models of a collection together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryFile

import numpy as np

from ultimate_embedder.export import PointsFile
from ultimate_embedder.vectors import UNNAMED, Fusion, KeyIndex, PassVectors

READ_ROWS = 1024
CONCATENATED = "concat"  # what `named` vectors are compared by: their cosine is the weighted mean of the models' own

Read = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Maker:
    """A model that made vectors; `digest` is empty where its files are not known."""

    model: str
    digest: str


@dataclass(frozen=True)
class Leg:
    """Vectors of texts, found by the keys of the texts."""

    name: str
    makers: tuple[Maker, ...]
    method: str
    """How several models were combined; empty for one model."""
    dim: int
    holds: Read
    """For each key, whether its text has a vector."""
    read: Read
    """The vectors of keys, all of which must be held."""
    parts: tuple[Leg, ...] = ()
    """Named vectors: those of each model, which search fuses by `weights`; empty for one vector per text."""
    weights: tuple[float, ...] = (1.0,)

    @property
    def searched(self) -> tuple[Leg, ...]:
        """The vectors that are searched."""
        return self.parts or (self,)


def stored_leg(store: PassVectors) -> Leg:
    """The vectors of one pass in the store of an output."""
    identity = store.identity
    maker = Maker(identity.model, identity.model_digest)
    return Leg(identity.model, (maker,), "", store.dim or 0, store.holds, store.read)


def exported_leg(points: PointsFile, name: str, makers: tuple[Maker, ...], method: str, keys: np.ndarray) -> Leg:
    """Vectors of an export, for an output without its store: copied to a temporary file that is memory-mapped.

    `keys` are those of the texts of all points, in their order.
    """
    (spec,) = (each for each in points.vectors if each.name == name)
    shape = (len(keys), spec.dim or 0)
    with TemporaryFile() as file:  # deleted when it is no longer mapped
        matrix = np.memmap(file, np.float32, "w+", shape=shape)
    start = 0
    for block in points.vector_blocks(name, READ_ROWS):
        matrix[start : start + len(block)] = block
        start += len(block)
    index = KeyIndex()
    index.add(0, keys)
    title = name or (makers[0].model if len(makers) == 1 else method or "vector")
    return Leg(
        title,
        makers,
        method,
        spec.dim or 0,
        lambda wanted: index.find(wanted) >= 0,
        lambda wanted: np.asarray(matrix[index.unpack(index.find(wanted))[1]]),
    )


def whole_leg(legs: Sequence[Leg], fusion: Fusion) -> Leg:
    """All models together, as the collection is searched: by one fused vector, or by those of all models."""
    if len(legs) == 1:
        return legs[0]
    named = fusion.method == "named"
    fused = replace(fusion, method=CONCATENATED) if named else fusion
    (spec,) = fused.vectors  # neither method has named vectors

    def holds(keys: np.ndarray) -> np.ndarray:
        return np.asarray(np.logical_and.reduce([leg.holds(keys) for leg in legs]))

    def read(keys: np.ndarray) -> np.ndarray:
        return fused.fuse([leg.read(keys) for leg in legs])[UNNAMED]

    names = " + ".join(f"{member.weight:.2f} {member.name}" for member in fusion.members)
    makers = tuple(maker for leg in legs for maker in leg.makers)
    whole = Leg(f"{fusion.method}({names})", makers, fused.method, spec.dim or 0, holds, read)
    if not named:
        return whole
    return replace(whole, parts=tuple(legs), weights=tuple(member.weight for member in fusion.members))
