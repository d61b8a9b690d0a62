"""`embeddings.npy`, or `embeddings/MODEL.npy` for each model: row i is chunk i in load order. Dense vectors only."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ultimate_embedder.export.format import ExportFormat, ExportSize
from ultimate_embedder.export.points import Points
from ultimate_embedder.files import atomic_file, atomic_folder
from ultimate_embedder.output import embeddings_name
from ultimate_embedder.types import UNNAMED, VectorSpec

FILE_NAME = "embeddings.npy"
FOLDER_NAME = "embeddings"  # if vectors have names


def write(points: Points, path: Path) -> None:
    """Write all vectors as float32 arrays, block by block."""
    import numpy as np

    dense = [spec for spec in points.vectors if not spec.is_sparse]
    with ExitStack() as stack:
        if _is_one_file(dense):
            places = {UNNAMED: path}
        else:
            folder = stack.enter_context(atomic_folder(path))
            places = {spec.name: folder / embeddings_name(spec.name) for spec in dense}
        files = {name: stack.enter_context(atomic_file(place)) for name, place in places.items()}
        for spec in dense:
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(points), spec.dim)}
            np.lib.format.write_array_header_1_0(files[spec.name], header)
        for block in points.blocks():
            for name, vectors in block.vectors.items():
                files[name].write(vectors.astype("<f4", copy=False).tobytes())


def _file_name(vectors: Sequence[VectorSpec]) -> str:
    return FILE_NAME if _is_one_file(vectors) else FOLDER_NAME


def _is_one_file(vectors: Sequence[VectorSpec]) -> bool:
    return any(spec.name == UNNAMED for spec in vectors)


def _size(size: ExportSize) -> int:
    return size.vector_bytes


EXPORT = ExportFormat(kind="npy", file_name=_file_name, write=write, size=_size, holds_sparse=False)
