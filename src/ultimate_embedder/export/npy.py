"""`embeddings.npy`: row i is chunk i in load order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ultimate_embedder.export.points import Points
from ultimate_embedder.files import whole_file


def write(points: Points, path: Path) -> None:
    """Write all vectors as one float32 array, block by block."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (len(points), points.dim)}
    with whole_file(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in points.blocks():
            file.write(block.vectors.astype("<f4", copy=False).tobytes())
