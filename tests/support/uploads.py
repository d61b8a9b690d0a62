"""Upload with an event sink and a retry policy of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ultimate_embedder.events import Emit
from ultimate_embedder.export import UploadReport, make_upload_config, upload_points
from ultimate_embedder.retry import RetryPolicy


def upload(
    folder: Path, url: str, emit: Emit = lambda event: None, policy: RetryPolicy | None = None, **options: Any
) -> list[UploadReport]:
    """Upload a folder with the options of the command, by their names in Python."""
    return upload_points(make_upload_config(folder, url, **options), emit, policy)
