"""The result of an upload, or of a dry run of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class UploadReport:
    """What was done for a collection, or would be done. None means that it was not looked at."""

    collection: str
    target: str
    """The Qdrant collection."""
    url: str
    dry_run: bool = False
    points: int
    """In `chunks.parquet`."""
    counted: int
    """How many of these the server has."""
    created: bool
    """Whether the Qdrant collection is new."""
    recreated: int | None = None
    """The points of the collection that --recreate deleted."""
    resumed_at: int = 0
    sent_bytes: int = 0
    new: int | None = None
    """Points that the server does not have; only a dry run looks."""
    changed: int | None = None
    """Points that the server has with another payload; only a dry run looks."""
    removed: int = 0
    """Points on the server whose chunks are gone."""
    deleted: int = 0
    """How many of these were deleted."""
    alias: str | None = None
    replaced: str | None = None
    """The Qdrant collection that the alias pointed to before."""
    replaced_deleted: bool = False
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return asdict(self)
