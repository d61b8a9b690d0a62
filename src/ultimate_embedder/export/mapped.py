"""Exported vectors as arrays: memory-mapped from the npy export where that is whole, else read from parquet."""

from __future__ import annotations

import numpy as np

from ultimate_embedder.errors import UsageError
from ultimate_embedder.export.check import check_export
from ultimate_embedder.export.journal import read_export_journal
from ultimate_embedder.export.points_file import PointsFile
from ultimate_embedder.files import size_bytes
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.types import UNNAMED, VectorSpec

READ_ROWS = 1024
AGAIN = "Run embed again, with --export npy,parquet: vectors that are stored are not computed again."


def read_vectors(collection: CollectionOutput, spec: VectorSpec, points: int, *, check: bool = False) -> np.ndarray:
    """All vectors of one name, a row for each point; `check` compares the checksum of the npy export, too."""
    mapped = _map_npy(collection, spec, points, check)
    if not isinstance(mapped, str):
        return mapped
    if collection.points_file.exists():
        return PointsFile.open(collection.points_file).read_vectors(spec.name, READ_ROWS)
    raise UsageError(f"{collection.folder} has no vectors to read: {mapped}. {AGAIN}")


def _map_npy(collection: CollectionOutput, spec: VectorSpec, points: int, check: bool) -> np.ndarray | str:
    """The npy export, or why it cannot be used."""
    path = collection.embeddings if spec.name == UNNAMED else collection.embeddings_of(spec.name)
    journal = read_export_journal(collection.folder)
    noted = journal.get("npy")
    if noted is None:
        return "there is no npy export and no parquet export"
    if noted["identity"] != journal.get("parquet", noted)["identity"]:
        return f"{path} is of other points than the parquet export"
    whole = collection.folder / noted["name"]
    if not path.exists() or size_bytes(whole) != noted["size_bytes"]:
        return f"{path} is missing, or not of the size that embed recorded"
    if check and (problem := check_export(collection.folder, "npy", noted).problem):
        return f"{path} {problem}"
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        return f"{path} cannot be read ({error})"
    fits = vectors.dtype == np.float32 and vectors.shape == (points, spec.dim)
    return vectors if fits else f"{path} has not the vectors that embed recorded"
