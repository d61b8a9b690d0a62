"""The vectors of a collection that can be evaluated: those of each model, from the store or from the exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ultimate_embedder.description import EncoderFacts, fingerprint, parse_identity
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import PointsFile, read_export_journal, read_origin
from ultimate_embedder.find.evaluate.scoring import RowSource, regroup
from ultimate_embedder.find.recorded import read_fusion
from ultimate_embedder.models import find_spec
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.types import UNNAMED, PassIdentity
from ultimate_embedder.vectors import Candidate, VectorStore

READ_ROWS = 1024
AGAIN = "Run the same embed command again: vectors that are stored are not computed again."


@dataclass(frozen=True)
class StoredVectors:
    """Vectors in the store, found by the keys of the texts."""

    store: VectorStore
    keys: np.ndarray

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the vectors, `rows` at a time."""
        for start in range(0, len(self.keys), rows):
            yield self.store.read(self.keys[start : start + rows])


@dataclass(frozen=True)
class ExportedVectors:
    """Vectors in the parquet export, where the store is gone."""

    points: PointsFile
    name: str

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the vectors, `rows` at a time; row groups are of any size."""
        batches = self.points.vector_blocks(self.name, READ_ROWS)
        return regroup(batches, rows, np.concatenate, lambda joined, start: joined[start : start + rows])


@dataclass(frozen=True)
class ModelVectors:
    """The vectors that one model gave the chunks."""

    name: str
    identity: PassIdentity
    weight: float
    dim: int
    vectors: RowSource
    encoder: EncoderFacts | None = None

    @property
    def shorter_dims(self) -> tuple[int, ...]:
        """The dimensions below its own that the model was trained for (Matryoshka)."""
        spec = find_spec(self.identity.model)
        return tuple(dim for dim in (spec.matryoshka_dims if spec else ()) if dim < self.dim)

    @property
    def candidate(self) -> Candidate:
        """The model as a member of a fusion."""
        return Candidate(self.name, self.weight, self.dim, self.shorter_dims)


@dataclass(frozen=True)
class FusedVectors:
    """Vectors that were fused when they were exported, if those of the models are not there."""

    method: str
    members: tuple[ModelVectors, ...]
    """Their own vectors cannot be read."""
    vectors: RowSource


@dataclass(frozen=True)
class Sources:
    """Everything that a collection can be searched by."""

    models: tuple[ModelVectors, ...]
    exported: str
    """How the exported vectors were fused; `single` if there is one model."""
    fused: FusedVectors | None = None
    sparse: Mapping[str, PassIdentity] = field(default_factory=dict)
    """The passes that made sparse vectors, by fingerprint."""
    notes: tuple[str, ...] = ()


def find_sources(collection: CollectionOutput, points: PointsFile, keys: np.ndarray) -> Sources:
    """The models whose vectors can be read, for all chunks; raises `UsageError` if there are none."""
    origin = read_origin(points.origin)
    identities = [parse_identity(each) for each in origin.passes] if origin else []
    if not identities or None in identities:
        raise UsageError(
            f"{collection.points_file} does not say which models made its vectors, as it is of another version of "
            f"ultimate-embedder. {AGAIN}"
        )
    known = [each for each in identities if each is not None and each.kind == "dense"]
    fusion = read_fusion(origin.fusion) if origin else None
    members = {member.name: member for member in fusion.members} if fusion else {}
    named = {spec.name: spec.dim for spec in points.vectors if not spec.is_sparse}
    models, unread, notes = [], [], []
    for identity in known:
        weight = members[identity.model].weight if identity.model in members else 1.0
        found = _stored(collection, identity, weight, keys)
        exported = UNNAMED if len(known) == 1 else identity.model
        if isinstance(found, str) and exported in named:
            notes.append(f"{identity.model}: {found}, so its vectors are read from {points.path.name}")
            dim = named[exported] or 0
            found = ModelVectors(identity.model, identity, weight, dim, ExportedVectors(points, exported))
        if isinstance(found, str):
            notes.append(f"{identity.model} cannot be evaluated alone: {found}. {AGAIN}")
            dim = members[identity.model].dim if identity.model in members else 0
            unread.append(ModelVectors(identity.model, identity, weight, dim, ExportedVectors(points, UNNAMED)))
        else:
            models.append(found)
    method = fusion.method if fusion else "single"
    fused = None
    if unread and UNNAMED in named:
        by_name = {each.name: each for each in (*models, *unread)}
        ordered = tuple(by_name[each.model] for each in known)
        fused = FusedVectors(method, ordered, ExportedVectors(points, UNNAMED))
    sparse = {fingerprint(each): each for each in identities if each is not None and each.kind == "sparse"}
    return Sources(tuple(models), method, fused, sparse, tuple(notes))


def _stored(
    collection: CollectionOutput, identity: PassIdentity, weight: float, keys: np.ndarray
) -> ModelVectors | str:
    """The vectors of a pass in the store, or why they cannot be used."""
    store = VectorStore(collection.store, identity, read_only=True)
    if store.dim is None:
        return f"{store.folder} is missing or empty"
    held = int(store.holds(keys).sum())
    if held < len(keys):
        return f"{store.folder} has vectors of {held:,} of {len(keys):,} chunks"
    vectors = StoredVectors(store, keys)
    return ModelVectors(identity.model, identity, weight, store.dim, vectors, store.encoder_facts)


def journal_identity(collection: CollectionOutput) -> str:
    """What the points of a collection are made of: equal identities mean equal points."""
    return str(read_export_journal(collection.folder).get("parquet", {}).get("identity", ""))
