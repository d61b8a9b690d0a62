"""Decompress gzip and zstd files as they are read, up to a limit: a few kilobytes may stand for terabytes."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Literal

from ultimate_embedder.chunks.formats.format import BYTES_PER_BYTE, LEAST_MOST_BYTES

Compression = Literal["gzip", "zstd"]
MAGIC: dict[Compression, bytes] = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
LONGEST_MAGIC = max(map(len, MAGIC.values()))
BLOCK_BYTES = 1 << 16
GZIP_ONLY = 16 + zlib.MAX_WBITS


class DecompressionError(OSError):
    """What a compressed file holds cannot be read from here on; what came before was read."""


def compression_of(start: bytes) -> Compression | None:
    """How a file is compressed, by its first bytes: a `.gz` that a browser has unpacked keeps its name."""
    return next((kind for kind, magic in MAGIC.items() if start.startswith(magic)), None)


class Decompressed(io.RawIOBase):
    """The content of a compressed file, which ends where the file is damaged; closes the file with itself."""

    def __init__(self, raw: BinaryIO, kind: Compression) -> None:
        size = os.fstat(raw.fileno()).st_size
        self.error: DecompressionError | None = None
        """Why it has ended too early. Not raised while reading, as buffers would lose what precedes the damage."""
        self._raw = raw
        self._most = self._left = LEAST_MOST_BYTES + size * BYTES_PER_BYTE
        self._read: Callable[[int], bytes] = _Gzip(raw).read if kind == "gzip" else _zstd_reader(raw)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a part of the buffer; 0 at the end. Raises DecompressionError if nothing at all can be read."""
        try:
            data = self._next(min(len(buffer), BLOCK_BYTES)) if self.error is None else b""
        except DecompressionError as error:
            if self._left == self._most:
                raise
            self.error, data = error, b""
        self._left -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def _next(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) > self._left:
            raise DecompressionError(f"the file expands to more than {self._most:,} bytes, which is the limit")
        return data

    def close(self) -> None:
        """Close the file as well."""
        self._raw.close()
        super().close()


class _Gzip:
    """The members of a gzip file one after the other; unlike `gzip` it gives all that precedes the damage."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._member = zlib.decompressobj(GZIP_ONLY)
        self._pending = b""

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        while True:
            if self._member.eof and not self._begin_member():
                return b""
            self._pending = self._pending or self._raw.read(BLOCK_BYTES)
            ended = not self._pending
            try:
                data = self._member.decompress(self._pending, size)
            except zlib.error as error:
                raise DecompressionError("the gzip file is damaged") from error
            self._pending = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if data:
                return data
            if ended and not self._member.eof:
                raise DecompressionError("the gzip file is truncated")

    def _begin_member(self) -> bool:
        """Begin the next member; False if only padding follows."""
        self._pending = self._pending.lstrip(b"\0")
        while not self._pending:
            if not (block := self._raw.read(BLOCK_BYTES)):
                return False
            self._pending = block.lstrip(b"\0")
        self._member = zlib.decompressobj(GZIP_ONLY)
        return True


def _zstd_reader(raw: BinaryIO) -> Callable[[int], bytes]:
    import pyarrow as pa  # it loads slowly

    stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def read(size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except OSError as error:
            what = "truncated" if "Truncated" in str(error) else "damaged"
            raise DecompressionError(f"the zstd file is {what}") from error

    return read
