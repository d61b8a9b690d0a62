"""The list of export formats, used by `--export`, the writer and the check of free disk space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ultimate_embedder.config import one_of
from ultimate_embedder.export import jsonl, npy, parquet, qdrant
from ultimate_embedder.export.format import ExportFormat, ExportSize
from ultimate_embedder.types import VectorSpec

EXPORTS: tuple[ExportFormat, ...] = (npy.EXPORT, parquet.EXPORT, jsonl.EXPORT, qdrant.EXPORT)

EXPORT_KINDS: tuple[str, ...] = tuple(export.kind for export in EXPORTS)
DEFAULT_EXPORTS: tuple[str, ...] = tuple(export.kind for export in EXPORTS if export.by_default)
FLOAT32_BYTES = 4
SPARSE_BYTES = 8 * 256  # expected, of a vector: an index and a value for each of 256 words


def find_export(kind: str) -> ExportFormat:
    """The export format of this kind; raises `UsageError` with the valid kinds."""
    by_kind = {export.kind: export for export in EXPORTS}
    return by_kind[one_of(kind, tuple(by_kind), "--export")]


def sparse_exports() -> tuple[str, ...]:
    """The kinds of exports that have sparse vectors."""
    return tuple(export.kind for export in EXPORTS if export.holds_sparse)


def estimate_export_bytes(
    kinds: Sequence[str], payloads: ExportSize, vectors: Sequence[VectorSpec], sparse_bytes: int | None = None
) -> int:
    """The disk space that these exports need for points with these payloads and vectors.

    `sparse_bytes`: indices and values of all sparse vectors, if that is known.
    """
    numbers = payloads.rows * sum(spec.dim or 0 for spec in vectors)
    sparse = payloads.rows * sum(spec.is_sparse for spec in vectors)
    if sparse_bytes is None:
        sparse_bytes = sparse * SPARSE_BYTES
    size = replace(payloads, vector_bytes=numbers * FLOAT32_BYTES, sparse_bytes=sparse_bytes)
    return sum(find_export(kind).size(size) for kind in kinds)
