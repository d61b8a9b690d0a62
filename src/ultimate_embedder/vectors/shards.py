"""Shards: files of vectors with the keys of their texts, checked before they are used."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from ultimate_embedder.files import file_sha256
from ultimate_embedder.vectors.ledger import LedgerLine

# numpy evaluates the header of a file as Python
_UNREADABLE = (OSError, ValueError, TypeError, SyntaxError, EOFError, OverflowError, RecursionError, TokenError)


def row_dtype(dim: int) -> np.dtype[Any]:
    """One row of a shard."""
    return np.dtype([("key", "<u8", (2,)), ("truncated", "?"), ("vector", "<f4", (dim,))])


def load_shard(folder: Path, line: LedgerLine) -> np.ndarray | str:
    """The rows of a shard, memory-mapped, or what is wrong with it, to follow its path in a sentence."""
    path = folder / line.shard
    try:
        if not path.is_file():
            return "is missing"
        if file_sha256(path) != line.sha256:
            return "is damaged (its checksum does not match)"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    try:
        rows = np.load(path, mmap_mode="r")
    except _UNREADABLE:
        return "is damaged (it is no array)"
    if rows.dtype.names != ("key", "truncated", "vector") or rows.dtype["vector"].ndim != 1:
        return "is damaged (it has no vectors)"
    if rows.dtype != row_dtype(rows.dtype["vector"].shape[0]) or rows.shape != (line.rows,):
        return f"is damaged (it has not {line.rows} rows of vectors)"
    return np.asarray(rows)


def unlisted_shards(folder: Path, listed: Collection[str]) -> Iterator[Path]:
    """Shards that do not count: their line of the ledger is lost, or was never written."""
    yield from (path for path in sorted(folder.glob("shard-*.npy")) if path.name not in listed)
