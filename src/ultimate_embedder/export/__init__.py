"""Vectors in the formats that other programs read."""

from ultimate_embedder.export.parquet import PointsFile
from ultimate_embedder.export.points import Points, point_id, target_collection_name
from ultimate_embedder.export.upload import UploadReport, upload
from ultimate_embedder.export.write import export_problem, has_exports, read_export_journal, write_exports

__all__ = [
    "Points",
    "PointsFile",
    "UploadReport",
    "export_problem",
    "has_exports",
    "point_id",
    "read_export_journal",
    "target_collection_name",
    "upload",
    "write_exports",
]
