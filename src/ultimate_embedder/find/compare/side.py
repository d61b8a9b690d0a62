"""One side of a comparison: the vectors of a collection by the keys of its texts, and its texts for examples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ultimate_embedder.chunks import text_key
from ultimate_embedder.errors import UltimateEmbedderError, UsageError
from ultimate_embedder.export import PointsFile, read_export_journal, read_origin
from ultimate_embedder.find.compare.legs import READ_ROWS, Leg, Maker, exported_leg, stored_leg, whole_leg
from ultimate_embedder.find.compare.result import ShownText
from ultimate_embedder.find.recorded import read_fusion, summary_fusion
from ultimate_embedder.output import POINTS_FILE, CollectionOutput
from ultimate_embedder.summary import RunSummary
from ultimate_embedder.vectors import FUSIONS, UNNAMED, Fusion, KeyIndex, Member, VectorStore, read_identity

SHOWN_CHARACTERS = 160


@dataclass(frozen=True)
class Side:
    """What is compared of one output."""

    keys: np.ndarray
    """Of the distinct texts."""
    legs: tuple[Leg, ...]
    """One per model, where these can be told apart."""
    whole: Leg | None
    """All models together; None if it is not known how."""
    points: PointsFile | None
    text_keys: np.ndarray
    """Of all points, in their order; empty without `points`."""
    id_keys: np.ndarray
    notes: tuple[str, ...]

    def show(self, keys: np.ndarray) -> dict[tuple[int, int], ShownText]:
        """Chunk id and beginning of the texts of these keys; the first chunk of each."""
        if self.points is None or not len(keys):
            return {}
        index = KeyIndex()
        index.add(0, self.text_keys)
        _, rows = index.unpack(index.find(keys))
        wanted = {int(row): (int(key[0]), int(key[1])) for row, key in zip(rows, keys, strict=True)}
        found: dict[tuple[int, int], ShownText] = {}
        start = 0
        for ids, texts in self.points.texts(READ_ROWS):
            for row in [row for row in wanted if start <= row < start + len(ids)]:
                found[wanted[row]] = ShownText(ids[row - start], texts[row - start][:SHOWN_CHARACTERS])
            start += len(ids)
            if len(found) == len(wanted):
                break
        return found


def open_side(collection: CollectionOutput, run: RunSummary | None) -> Side:
    """Open the vectors of a collection: from its store, or from its export where the store is missing."""
    notes: list[str] = []
    points = _open_points(collection, notes)
    id_keys, text_keys = _point_keys(points, notes) if points else (no_keys(), no_keys())
    stores, fusion = _open_stores(collection, run, notes)
    legs, whole = [stored_leg(store) for store in stores], None
    if stores:
        whole = whole_leg(legs, fusion) if fusion is not None else None
        keys = distinct(text_keys) if len(text_keys) else stores[0].keys()
    elif points is not None and len(text_keys):
        legs, whole = _exported(points, text_keys)
        keys = distinct(text_keys)
    else:
        raise UsageError(" ".join([f"{collection.folder} has no vectors that can be read.", *notes]))
    if stores and whole is None:
        notes.append(f"{collection.folder}: how its models are combined is not recorded: only models are compared")
    if not len(text_keys):
        notes.append(f"{collection.folder} has no {POINTS_FILE}: texts that were removed since are compared, too")
    return Side(keys, tuple(legs), whole, points if len(text_keys) else None, text_keys, id_keys, tuple(notes))


def distinct(keys: np.ndarray) -> np.ndarray:
    """Each key once, in order."""
    index = KeyIndex()
    index.add(0, keys)
    return np.asarray(keys[index.find(keys) == np.arange(len(keys))])


def no_keys() -> np.ndarray:
    """No key."""
    return np.empty((0, 2), np.uint64)


def _open_points(collection: CollectionOutput, notes: list[str]) -> PointsFile | None:
    if not collection.points_file.exists():
        return None
    try:
        return PointsFile.open(collection.points_file)
    except UltimateEmbedderError as error:
        notes.append(str(error))
        return None


def _point_keys(points: PointsFile, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The keys of the ids and of the texts of all points."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    try:
        found.extend((_keys(ids), _keys(texts)) for ids, texts in points.texts(READ_ROWS))
    except UltimateEmbedderError as error:
        notes.append(str(error))
        return no_keys(), no_keys()
    if not found:
        return no_keys(), no_keys()
    return np.concatenate([ids for ids, _ in found]), np.concatenate([texts for _, texts in found])


def _keys(texts: Iterable[str]) -> np.ndarray:
    return np.array([text_key(text) for text in texts], np.uint64).reshape(-1, 2)


def _open_stores(
    collection: CollectionOutput, run: RunSummary | None, notes: list[str]
) -> tuple[list[VectorStore], Fusion | None]:
    """The stores of the passes that the vectors are made of, and how they are combined, if that is known."""
    fingerprints, fusion = _recipe(collection, run)
    stores = []
    for each in collection.passes:
        if fingerprints and each.fingerprint not in fingerprints:
            continue
        identity = read_identity(each.folder)
        if identity is None:
            notes.append(f"{each.description} cannot be used: its vectors are left out")
            continue
        if identity.kind == "sparse":
            notes.append(f"{collection.name}: the sparse vectors of {identity.model} are not compared")
            continue
        store = VectorStore(collection.store, identity, read_only=True)
        notes += store.notes
        if store.dim is not None:
            stores.append(store)
    stores = _one_per_model(stores, notes)
    order = [member.name for member in fusion.members] if fusion else []
    if fusion is None or sorted(order) != sorted(store.identity.model for store in stores):
        return stores, _only(stores)
    stores.sort(key=lambda store: order.index(store.identity.model))
    return stores, fusion if _fits(fusion, [store.dim or 0 for store in stores]) else _only(stores)


def _one_per_model(stores: list[VectorStore], notes: list[str]) -> list[VectorStore]:
    """Of several passes of one model, where nothing says which is meant, that with the most vectors."""
    chosen: dict[str, VectorStore] = {}
    for store in sorted(stores, key=lambda each: -len(each.keys())):
        first = chosen.setdefault(store.identity.model, store)
        if first is not store:
            notes.append(f"{store.folder} is left out: {first.folder.name} has more vectors of the same model")
    return list(chosen.values())


def _fits(fusion: Fusion, dims: Sequence[int]) -> bool:
    """Whether a fusion that was recorded can be that of vectors of these dimensions."""
    members = fusion.members
    if not all(0 <= member.weight < math.inf for member in members) or len(members) != len(dims):
        return False
    if fusion.method == "weighted_average" and len({member.dim for member in members}) > 1:
        return False
    return all(0 < member.dim <= dim for member, dim in zip(members, dims, strict=True))


def _only(stores: Sequence[VectorStore]) -> Fusion | None:
    """The trivial fusion of one model."""
    if len(stores) != 1:
        return None
    return Fusion(FUSIONS[0], (Member(stores[0].identity.model, 1.0, stores[0].dim or 0),))


def _recipe(collection: CollectionOutput, run: RunSummary | None) -> tuple[tuple[str, ...], Fusion | None]:
    """The passes of the last run, else those that the exports are made of, else nothing is known."""
    entry = next((each for each in run.collections if each.collection == collection.name), None) if run else None
    dense = entry.dense_passes if entry else []
    if run is not None and entry is not None and dense and all(each.dim for each in dense):
        return tuple(each.fingerprint for each in entry.passes), summary_fusion(run, entry)
    journal = read_export_journal(collection.folder)
    noted = journal.get("parquet") or next(iter(journal.values()), {})
    origin = read_origin(noted.get("origin"))
    return tuple(noted.get("passes", ())), read_fusion(origin.fusion) if origin else None


def _exported(points: PointsFile, keys: np.ndarray) -> tuple[list[Leg], Leg | None]:
    """The vectors of an export, by model if they have names."""
    origin = read_origin(points.origin)
    passes = [each for each in origin.passes if each.get("kind") != "sparse"] if origin else []
    makers = [Maker(str(each.get("model")), str(each.get("model_digest") or "")) for each in passes]
    fusion = read_fusion(origin.fusion) if origin else None
    specs = [spec for spec in points.vectors if spec.kind == "dense"]
    if [spec.name for spec in specs] == [UNNAMED]:
        known = tuple(makers) or (Maker("", ""),)
        leg = exported_leg(points, UNNAMED, known, fusion.method if fusion and len(makers) > 1 else "", keys)
        return ([leg] if len(known) == 1 else []), leg
    by_name = {maker.model: maker for maker in makers}
    legs = [
        exported_leg(points, spec.name, (by_name.get(spec.name, Maker(spec.name, "")),), "", keys) for spec in specs
    ]
    named = fusion is not None and [member.name for member in fusion.members] == [leg.name for leg in legs]
    fits = fusion is not None and named and _fits(fusion, [leg.dim for leg in legs])
    return legs, whole_leg(legs, fusion) if fusion is not None and fits else None
