"""Read tables of flatbuffers, in which Arrow has the metadata of its messages."""

from __future__ import annotations

import struct

VECTOR_HEAD_BYTES = 4


class FlatbufferError(ValueError):
    """The bytes are no such table."""

    def __init__(self) -> None:
        super().__init__("the metadata of a message is damaged")


class Table:
    """One table: values by field number, as a schema gives them out in order."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - _number(data, "<i", at)  # where the table says where each field is
        self._fields_bytes = _number(data, "<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> Table:
        """The table that the bytes are made for."""
        return cls(data, _number(data, "<I", 0))

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """A number; `kind` as in the module struct."""
        at = self._place(field)
        return default if at is None else _number(self._data, f"<{kind}", at)

    def table(self, field: int) -> Table | None:
        """A table within this one; None if it is absent."""
        at = self._place(field)
        return None if at is None else Table(self._data, at + _number(self._data, "<I", at))

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of structs that are two 64-bit integers each."""
        at = self._place(field)
        if at is None:
            return []
        at += _number(self._data, "<I", at)
        count = _number(self._data, "<I", at)
        start, size = at + VECTOR_HEAD_BYTES, struct.calcsize("<qq")
        if start + count * size > len(self._data):
            raise FlatbufferError
        return list(struct.iter_unpack("<qq", self._data[start : start + count * size]))

    def _place(self, field: int) -> int | None:
        entry = 2 * (field + 2)  # behind the sizes of this list and of the table
        if entry >= self._fields_bytes:
            return None
        offset = _number(self._data, "<H", self._fields + entry)
        return self._at + offset if offset else None


def _number(data: bytes, kind: str, at: int) -> int:
    if at < 0:
        raise FlatbufferError
    try:
        return int(struct.unpack_from(kind, data, at)[0])
    except struct.error:
        raise FlatbufferError from None
