"""Read chunk files record by record. Unreadable parts are reported with file and position, never dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.chunks.formats import DecompressionError, Record, find_format, guess_format
from ultimate_embedder.types import Rejected


def read_records(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield every record of a chunk file, or a `Rejected` for each part that cannot be read."""
    read = 0
    try:
        # a file that the user named may have any name
        for item in (find_format(path) or guess_format(path)).read(path, name):
            read += not isinstance(item, Rejected)
            yield item
    except DecompressionError as error:
        before = f"; {read:,} records before it were read" if read else ""
        yield Rejected(name, None, f"{error}{before}")
    except OSError as error:
        yield Rejected(name, None, f"the file cannot be read: {error.strerror or error}")
