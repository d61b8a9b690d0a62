"""What the program knows about a kind of export. Each export module declares one of these."""

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
    """One kind of export: what `--export` calls it, where it is written, how large it is, and what writes it."""

    kind: str
    file_name: Callable[[Sequence[VectorSpec]], str]
    """Its name in the collection's folder; a file or a folder."""
    write: Callable[[Points, Path], None]
    """Writes all points to the path; whatever happens, what is there is complete or absent."""
    size_factor: int = 1
    """Its size in sizes of the vectors as float32."""
    by_default: bool = True
    """Whether it is written when `--export` is not given."""
