"""Shards: files of vectors with the keys of their texts, checked before they are used."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

from ultimate_embedder.files import file_sha256
from ultimate_embedder.state import UnfitError
from ultimate_embedder.vectors.ledger import LedgerLine
from ultimate_embedder.vectors.row_kinds import ROW_KINDS, RowKind, ShardRows

SUFFIXES = tuple(kind.suffix for kind in ROW_KINDS.values())
V = TypeVar("V")


def load_shard(folder: Path, line: LedgerLine, kind: RowKind[V]) -> ShardRows[V] | str:
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
        if path.suffix != kind.suffix:
            raise UnfitError("it holds another kind of vectors")
        rows = kind.open(path)
    except UnfitError as error:
        return f"is damaged ({error})"
    return rows if len(rows) == line.rows else f"is damaged (it has not {line.rows} rows of vectors)"


def unlisted_shards(folder: Path, listed: Collection[str]) -> Iterator[Path]:
    """Shards that do not count: their line of the ledger is lost, or was never written."""
    found = sorted(path for suffix in SUFFIXES for path in folder.glob(f"shard-*{suffix}"))
    yield from (path for path in found if path.name not in listed)
