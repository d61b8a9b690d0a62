"""The messages of an Arrow file or stream: where they are, and how much memory they take.

A compressed buffer says how long it is, and the reader allocates what it says: so this is read first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ultimate_embedder.chunks.formats.flatbuffer import FlatbufferError, Table

MAGIC = b"ARROW1"
STREAM_START = 8  # of the stream within a file: behind the magic bytes and their padding
CONTINUES = 0xFFFFFFFF
LARGEST_METADATA = 64 << 20
DICTIONARY, RECORDS = 2, 3
NOT_COMPRESSED = -1


@dataclass(frozen=True)
class Message:
    """A message: its kind, its rows if it has records, and its size in memory."""

    kind: int
    rows: int
    size_bytes: int


class TruncatedError(ValueError):
    """The file ends before its end mark."""

    def __init__(self) -> None:
        super().__init__("the file is truncated")


def stream_start(file: BinaryIO) -> int:
    """Where the messages of a file begin: the file format is a stream between magic bytes."""
    file.seek(0)
    return STREAM_START if file.read(len(MAGIC)) == MAGIC else 0


def read_messages(file: BinaryIO) -> Iterator[Message]:
    """Yield the messages of a file, one after the other. Raises TruncatedError or FlatbufferError."""
    end = file.seek(0, 2)
    at = stream_start(file)
    while True:
        file.seek(at)
        length = _length(file)
        if length == 0:
            return
        start = file.tell()
        if not 0 < length <= LARGEST_METADATA:
            raise FlatbufferError
        if start + length > end:
            raise TruncatedError
        message = Table.root(file.read(length))
        body, body_bytes = start + length, message.number(3, "q")
        if body_bytes < 0:
            raise FlatbufferError
        if body + body_bytes > end:
            raise TruncatedError
        yield _measured(file, message, body, body_bytes)
        at = body + body_bytes


def _length(file: BinaryIO) -> int:
    """The length of the metadata that follows; 0 at the end mark."""
    for _ in range(2):
        word = file.read(4)
        if len(word) < 4:
            raise TruncatedError
        if (length := int.from_bytes(word, "little")) != CONTINUES:
            return length  # also without the first word, as until 2019
    raise FlatbufferError


def _measured(file: BinaryIO, message: Table, body: int, body_bytes: int) -> Message:
    kind = message.number(1, "B")
    header = message.table(2)
    batch = header.table(1) if header and kind == DICTIONARY else header
    if batch is None or kind not in (DICTIONARY, RECORDS):
        return Message(kind, 0, body_bytes)
    rows = batch.number(0, "q")
    if rows < 0:
        raise FlatbufferError
    if batch.table(3) is None:
        return Message(kind, rows, body_bytes)
    buffers = [_expanded(file, body, offset, length, body_bytes) for offset, length in batch.pairs(2)]
    return Message(kind, rows, body_bytes + sum(buffers))


def _expanded(file: BinaryIO, body: int, offset: int, length: int, body_bytes: int) -> int:
    """The bytes that a compressed buffer expands to."""
    if offset < 0 or length < 0 or offset + length > body_bytes:
        raise FlatbufferError
    if length < 8:
        return 0
    file.seek(body + offset)
    expanded = int.from_bytes(file.read(8), "little", signed=True)
    return 0 if expanded == NOT_COMPRESSED else max(0, expanded)
