"""`embeddings.npy`, or `embeddings/MODEL.npy` for each model: row i is chunk i in load order."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ultimate_embedder.export.points import Points
from ultimate_embedder.files import safe_name, whole_file, whole_folder
from ultimate_embedder.vectors import UNNAMED


def write(points: Points, path: Path) -> None:
    """Write all vectors as float32 arrays, block by block."""
    with ExitStack() as stack:
        if UNNAMED in points.dims:
            places = {UNNAMED: path}
        else:
            folder = stack.enter_context(whole_folder(path))
            places = {name: folder / f"{safe_name(name)}.npy" for name in points.dims}
        files = {name: stack.enter_context(whole_file(place)) for name, place in places.items()}
        for name, dim in points.dims.items():
            header = {"descr": "<f4", "fortran_order": False, "shape": (len(points), dim)}
            np.lib.format.write_array_header_1_0(files[name], header)
        for block in points.blocks():
            for name, vectors in block.vectors.items():
                files[name].write(vectors.astype("<f4", copy=False).tobytes())
