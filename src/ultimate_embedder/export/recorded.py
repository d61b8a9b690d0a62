"""What embed has recorded of a points file: its checksum, and where its vectors are from."""

from __future__ import annotations

from pathlib import Path

from ultimate_embedder.errors import UsageError
from ultimate_embedder.export.journal import read_export_journal
from ultimate_embedder.export.origin import VectorOrigin, read_origin
from ultimate_embedder.export.points_file import PointsFile
from ultimate_embedder.output import Output

KIND = "parquet"


def recorded_checksum(path: Path) -> str | None:
    """The sha256 of a points file when it was written, from the journal of its exports, else from the summary."""
    noted = read_export_journal(path.parent).get(KIND, {})
    recorded = noted.get("sha256") if noted.get("name") == path.name else _from_summary(path)
    return recorded if isinstance(recorded, str) and recorded else None


def recorded_origin(file: PointsFile) -> VectorOrigin | None:
    """Where the vectors of a points file are from; None if an earlier version wrote it."""
    noted = read_export_journal(file.path.parent).get(KIND, {})
    return read_origin(file.origin) or read_origin(noted.get("origin"))


def _from_summary(path: Path) -> str | None:
    try:
        summary = Output(path.parent.parent).read_summary()
    except UsageError:  # it says nothing, then
        return None
    entries = summary.collections if summary else []
    exports = [each for entry in entries if entry.collection == path.parent.name for each in entry.exports]
    return next((each.sha256 for each in exports if each.kind == KIND), None)
