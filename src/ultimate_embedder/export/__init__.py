"""Export vectors to files, and upload them to Qdrant."""

from typing import TYPE_CHECKING

from ultimate_embedder.export.check import ExportState, check_export
from ultimate_embedder.export.existing import ExistingExports, find_exports
from ultimate_embedder.export.format import ExportFormat, ExportSize
from ultimate_embedder.export.formats import (
    DEFAULT_EXPORTS,
    EXPORT_KINDS,
    EXPORTS,
    estimate_export_bytes,
    find_export,
    sparse_exports,
)
from ultimate_embedder.export.journal import journal_problems, read_export_journal
from ultimate_embedder.export.origin import VectorOrigin, read_origin
from ultimate_embedder.export.payloads import PAYLOAD_NAMES
from ultimate_embedder.export.points import Points, point_id, row_vector, target_collection_name
from ultimate_embedder.export.room import measure_payloads
from ultimate_embedder.export.server.options import (
    EXAMPLE_URL,
    UPLOAD_OUTPUT,
    ServerAddress,
    UploadConfig,
    make_upload_config,
    server_address,
)
from ultimate_embedder.export.server.report import UploadReport
from ultimate_embedder.export.sparse_facts import read_sparse_facts
from ultimate_embedder.export.upload_state import UploadState, drop_damaged_upload_state, read_uploads
from ultimate_embedder.export.write import (
    Drafts,
    begin_exports,
    has_exports,
    write_exports,
)
from ultimate_embedder.late import late_names

if TYPE_CHECKING:
    from ultimate_embedder.export.mapped import read_vectors
    from ultimate_embedder.export.points_file import PointsFile
    from ultimate_embedder.export.server.calls import Server
    from ultimate_embedder.export.server.connection import connect
    from ultimate_embedder.export.server.upload import upload_points

__all__ = [
    "DEFAULT_EXPORTS",
    "EXAMPLE_URL",
    "EXPORTS",
    "EXPORT_KINDS",
    "PAYLOAD_NAMES",
    "UPLOAD_OUTPUT",
    "Drafts",
    "ExistingExports",
    "ExportFormat",
    "ExportSize",
    "ExportState",
    "Points",
    "PointsFile",
    "Server",
    "ServerAddress",
    "UploadConfig",
    "UploadReport",
    "UploadState",
    "VectorOrigin",
    "begin_exports",
    "check_export",
    "connect",
    "drop_damaged_upload_state",
    "estimate_export_bytes",
    "find_export",
    "find_exports",
    "has_exports",
    "journal_problems",
    "make_upload_config",
    "measure_payloads",
    "point_id",
    "read_export_journal",
    "read_origin",
    "read_sparse_facts",
    "read_uploads",
    "read_vectors",
    "row_vector",
    "server_address",
    "sparse_exports",
    "target_collection_name",
    "upload_points",
    "write_exports",
]

# imported on first use: qdrant-client takes a second to import, pyarrow a tenth, and --help needs neither
_MODULES = {
    "PointsFile": "points_file",
    "Server": "server.calls",
    "connect": "server.connection",
    "read_vectors": "mapped",
    "upload_points": "server.upload",
}

__getattr__ = late_names(__name__, _MODULES)
