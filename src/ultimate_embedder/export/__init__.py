"""Vectors in the formats that other programs read."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.export.parquet import PointsFile
from ultimate_embedder.export.points import Points, point_id, target_collection_name
from ultimate_embedder.export.write import (
    export_copies,
    export_problem,
    has_exports,
    read_export_journal,
    write_exports,
)

if TYPE_CHECKING:
    from ultimate_embedder.export.server import UploadReport, upload

__all__ = [
    "Points",
    "PointsFile",
    "UploadReport",
    "export_copies",
    "export_problem",
    "has_exports",
    "point_id",
    "read_export_journal",
    "target_collection_name",
    "upload",
    "write_exports",
]


def __getattr__(name: str) -> Any:
    # imported on first use: the client of a server takes a second to load, and few runs upload
    if name in ("upload", "UploadReport"):
        import importlib

        return getattr(importlib.import_module("ultimate_embedder.export.server"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
