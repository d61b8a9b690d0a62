"""Read chunk files record by record. Unreadable parts are reported with file and position, never dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.chunks.formats import Record, find_format, whole_json
from ultimate_embedder.types import Rejected


def read_records(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield every record of a chunk file, or a `Rejected` for each part that cannot be read."""
    # a file that the user named may have any name, and most are JSON
    found = find_format(path) or whole_json.FORMAT
    try:
        yield from found.read(path, name)
    except OSError as error:
        yield Rejected(name, None, f"the file cannot be read: {error.strerror or error}")
