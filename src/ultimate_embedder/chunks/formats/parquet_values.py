"""The rows of an Arrow batch as plain records, whether it was read from Parquet or from Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ultimate_embedder.chunks.formats.format import LARGEST_RECORD, Record, first_keys
from ultimate_embedder.terminal import printable
from ultimate_embedder.types import Rejected

# what Arrow raises for files and values that it cannot read: its own errors and Python's
UNREADABLE = (
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    NotImplementedError,
    AttributeError,
    MemoryError,
    RecursionError,
)

VIEW_BYTES = 16


class RowReader:
    """Converts the rows of a batch one by one."""

    def __init__(self, batch: pa.RecordBatch, name: str) -> None:
        self._columns = list(zip(batch.schema.names, batch.columns, strict=True))
        self._name = name
        self.rows: int = batch.num_rows
        self.bytes = sum(expanded_bytes(column) for column in batch.columns)

    def record(self, row: int, position: int) -> Record | Rejected:
        """The record of a row, or why it is rejected."""
        if self.bytes > LARGEST_RECORD and self._row_bytes(row) > LARGEST_RECORD:
            reason = f"the row has more than {LARGEST_RECORD:,} bytes, which is the limit"
            return Rejected(self._name, position, reason)
        record = {}
        for name, column in self._columns:
            try:
                record[name] = plain(_value(column[row]), keep_bytes=True)
            except UnicodeDecodeError:
                return Rejected(self._name, position, f'the column "{first_keys([name])}" is not UTF-8 in this row')
            except UNREADABLE as error:
                reason = f'the column "{first_keys([name])}" cannot be read in this row ({type(error).__name__})'
                return Rejected(self._name, position, reason)
        return position, record

    def _row_bytes(self, row: int) -> int:
        return sum(expanded_bytes(column.slice(row, 1)) for _, column in self._columns)


def first_line(error: BaseException) -> str:
    """What an error says, for messages."""
    return printable((str(error).strip() or type(error).__name__).splitlines()[0][:200])


def expanded_bytes(values: pa.Array) -> int:
    """The size of values in memory, with each reference to a dictionary counted as what it refers to."""
    if isinstance(values, pa.DictionaryArray):
        return _dictionary_bytes(values)
    if isinstance(values, pa.ExtensionArray):
        return expanded_bytes(values.storage)
    if isinstance(values, pa.MapArray):
        start, stop = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return sum(expanded_bytes(each.slice(start, stop - start)) for each in (values.keys, values.items)) + len(
            values
        )
    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        return VIEW_BYTES * len(values)  # what they refer to may be shared by any number of rows
    if pa.types.is_nested(values.type):
        flat = values.flatten()  # the fields of a struct, the items of a list
        return sum(map(expanded_bytes, flat if isinstance(flat, list) else [flat])) + len(values)
    return int(values.nbytes)


def _dictionary_bytes(values: pa.DictionaryArray) -> int:
    import pyarrow.compute as pc  # it loads slowly

    kind = values.type.value_type
    references = int(values.indices.nbytes)
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or _is_large(kind):
        lengths = pc.binary_length(values.dictionary)
        return references + int(pc.sum(lengths.take(values.indices)).as_py() or 0)
    return references + len(values) * (int(values.dictionary.nbytes) // max(1, len(values.dictionary)))


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raise
    except UNREADABLE:  # a time that Python cannot represent: nanoseconds, the year 20000
        return _as_text(scalar)


def _as_text(scalar: pa.Scalar) -> str:
    try:
        return str(scalar.cast(pa.string()).as_py())
    except UnicodeDecodeError:
        raise
    except UNREADABLE:
        return str(scalar.value if hasattr(scalar, "value") else scalar)


def plain(value: Any, *, keep_bytes: bool = False) -> Any:
    """Convert types that JSON does not have (dates, bytes, decimals) to text; bytes may be the text, and may stay."""
    if isinstance(value, dict):
        return {str(key): plain(item, keep_bytes=keep_bytes) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, keep_bytes=keep_bytes) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, bytes):
        return value if keep_bytes else value.hex()
    if hasattr(value, "tolist"):  # of numpy: a number of half precision, a tensor
        return plain(value.tolist(), keep_bytes=keep_bytes)
    return str(value)
