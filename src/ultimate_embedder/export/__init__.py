"""Vectors in the formats that other programs read."""

from ultimate_embedder.export.parquet import PointsFile
from ultimate_embedder.export.points import Points, point_id, target_collection_name
from ultimate_embedder.export.upload import UploadReport, upload
from ultimate_embedder.export.write import write_exports

__all__ = ["Points", "PointsFile", "UploadReport", "point_id", "target_collection_name", "upload", "write_exports"]
