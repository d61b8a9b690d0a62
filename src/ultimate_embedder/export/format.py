"""The declaration of an export format. Each export module has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.types import VectorSpec

if TYPE_CHECKING:
    from ultimate_embedder.export.points import Points


@dataclass(frozen=True)
class ExportFormat:
    """An export format: its name in `--export`, its file name, its size, and the function that writes it."""

    kind: str
    file_name: Callable[[Sequence[VectorSpec]], str]
    """Name of the file or folder in the collection's folder."""
    write: Callable[[Points, Path], None]
    """Writes all points to the path, atomically."""
    size_factor: int = 1
    """Its size, as a multiple of the size of the vectors in float32."""
    by_default: bool = True
    """Whether it is written when `--export` is not given."""
