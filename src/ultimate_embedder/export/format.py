"""The declaration of an export format. Each export module has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ultimate_embedder.errors import OutputError
from ultimate_embedder.events import Emit
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import HnswGraph, VectorSpec

if TYPE_CHECKING:
    from ultimate_embedder.chunks import ChunkTable
    from ultimate_embedder.export.points import Points

    NamedVectors = Mapping[str, Any]
    """The vectors of some points by name, a row for each point: arrays, and `SparseVectors`."""
    PointBatches = Iterable[tuple[Sequence[str], NamedVectors, Sequence[Any]]]


@dataclass(frozen=True)
class ExportSize:
    """How much is exported, as far as it is known before."""

    rows: int
    vector_bytes: int
    """The dense vectors in float32."""
    json_bytes: int = 0
    """The payloads as JSON."""
    zstd_bytes: int = 0
    """The payloads in columns, compressed."""
    blocked_bytes: int = 0
    """The payloads one by one, compressed, in blocks of 128 bytes."""
    graph: HnswGraph | None = None
    """The search graph that is built."""
    sparse_bytes: int = 0
    """Indices and values of the sparse vectors."""


class UnreadableError(OutputError):
    """An export that is damaged so that it cannot be read."""


@dataclass(frozen=True)
class Changes:
    """How an export that other programs may change differs from what was written."""

    words: str
    """Empty if it was only opened."""
    ours_intact: bool
    """Whether everything that was written is still in it."""


class ExportDraft(Protocol):
    """An export that was begun before the vectors of its points were known."""

    def write(self, points: Points, path: Path) -> None:
        """Complete it, or write it as usual where what was begun is of no use."""
        ...

    def written_bytes(self) -> int:
        """What it takes on the disk so far."""
        ...


@dataclass(frozen=True)
class ExportFormat:
    """An export format: its name in `--export`, its file name, its size, and the function that writes it."""

    kind: str
    file_name: Callable[[Sequence[VectorSpec]], str]
    """Name of the file or folder in the collection's folder."""
    write: Callable[[Points, Path], None]
    """Writes all points to the path, atomically."""
    size: Callable[[ExportSize], int]
    """Estimates the bytes that it takes on the disk."""
    write_with_graph: Callable[[Points, Path, HnswGraph, Emit], None] | None = None
    """The same with a search graph, for a format that has one; it tells how it goes on."""
    begin: Callable[[str, ChunkTable, Path, Emit, StopSwitch], AbstractContextManager[ExportDraft]] | None = None
    """For a format most of whose work needs no vectors: begins it for a collection, while texts are encoded."""
    holds_sparse: bool = True
    """Whether sparse vectors are in it."""
    by_default: bool = True
    """Whether it is written when `--export` is not given."""
    passing_files: tuple[str, ...] = ()
    """Names of files in its folder that other programs delete, and that the checksum leaves out."""
    find_changes: Callable[[Path, PointBatches | None], Changes] | None = None
    """For a format that other programs write to: compares one whose bytes differ, by meaning.

    It is given the path, and the points that it was made of, if they are known. Raises `UnreadableError`.
    """
