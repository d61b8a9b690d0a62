"""Read structs of Thrift's compact protocol, in which Parquet has its metadata and page headers."""

from __future__ import annotations

from typing import Any

DEEPEST = 16
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12


class ThriftError(ValueError):
    """The bytes are no struct."""

    def __init__(self) -> None:
        super().__init__("its metadata or a page header is damaged")


class ThriftReader:
    """Reads one struct: values by field number. Raises IndexError where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The struct that begins here."""
        if depth > DEEPEST:
            raise ThriftError
        fields: dict[int, Any] = {}
        number = 0
        while kind := self._byte():
            number = number + (kind >> 4) if kind >> 4 else self._zigzag()
            if number in fields:  # readers differ in which one counts
                raise ThriftError
            fields[number] = self._value(kind & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):  # a boolean field is its type
            return kind == TRUE
        if kind == BYTE:
            return self._byte()
        if kind in (I16, I32, I64):
            return self._zigzag()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in (LIST, SET):
            return self._list(depth + 1)
        if kind == STRUCT:
            return self.struct(depth + 1)
        raise ThriftError

    def _list(self, depth: int) -> list[Any]:
        if depth > DEEPEST:
            raise ThriftError
        head = self._byte()
        count, kind = head >> 4, head & 15
        count = self._varint() if count == 15 else count
        if count > len(self.data):
            raise ThriftError
        return [self._byte() == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth) for _ in range(count)]

    def _byte(self) -> int:
        value = self.data[self.at]
        self.at += 1
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ThriftError

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise IndexError
        self.at += length
        return self.data[self.at - length : self.at]
