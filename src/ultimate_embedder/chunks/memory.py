"""Write chunks that the caller has in memory to a file: strings, dicts, data frames, Arrow tables, datasets."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from ultimate_embedder.chunks.fields import FieldReader
from ultimate_embedder.chunks.formats.parquet_values import first_line, plain
from ultimate_embedder.config import FieldChoice
from ultimate_embedder.errors import UsageError

LINES_FILE = "chunks.jsonl"
ARROW_FILE = "chunks.arrow"
BATCH_ROWS = 1024
PLAIN = (str, int, float, list, tuple, type(None))


def write_in_memory(data: Any, folder: Path, check: Callable[[], None], choice: FieldChoice | None = None) -> Path:
    """Write the chunks to a file in `folder` and return its path; `check` is called now and then, and may raise."""
    tables = _arrow_tables(data)
    if tables is not None:
        return _write_arrow(_reading(tables), folder / ARROW_FILE, check)
    return _write_lines(_reading(_lines(data, FieldReader(choice))), folder / LINES_FILE, check)


def _write_arrow(tables: Iterator[pa.Table], path: Path, check: Callable[[], None]) -> Path:
    first = next(tables, None)
    if first is None:
        raise UsageError("chunks has no rows. Give at least one.")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, first.schema) as writer:
        for table in itertools.chain([first], tables):
            check()
            try:
                writer.write_table(table, max_chunksize=BATCH_ROWS)
            except pa.ArrowException as error:  # other columns than the first
                raise UsageError(f"chunks cannot be written as one table ({first_line(error)}).") from error
    return path


def _write_lines(lines: Iterator[str], path: Path, check: Callable[[], None]) -> Path:
    count = 0
    with open(path, "wb") as file:
        for count, line in enumerate(lines, 1):
            file.write(line.encode() + b"\n")
            if count % BATCH_ROWS == 0:
                check()
    if not count:
        raise UsageError("chunks has no items. Give at least one text or dict.")
    return path


def _reading(source: Iterator[Any]) -> Iterator[Any]:
    """The same items; what the caller's object raises is an error in words."""
    count = 0
    while True:
        try:
            item = next(source)
        except StopIteration:
            return
        except UsageError:
            raise
        except Exception as error:  # the code of the caller may raise anything
            raise UsageError(
                f"chunks cannot be read: {type(error).__name__} after {count:,} items ({error}). Nothing was computed."
            ) from error
        yield item
        count += 1


def _arrow_tables(data: Any) -> Iterator[pa.Table] | None:
    """What is in columns, as tables; None if it is to be read item by item."""
    if _is_from(data, "pandas"):
        return None  # a column may have values of several types
    if _is_from(data, "datasets") and hasattr(data, "with_format") and hasattr(data, "__len__"):
        return (table for table in data.with_format("arrow").iter(batch_size=BATCH_ROWS))
    if isinstance(data, pa.RecordBatch):
        return iter([pa.Table.from_batches([data])])
    if _is_from(data, "polars") and hasattr(data, "collect") and not hasattr(data, "to_arrow"):
        data = data.collect()  # a query that was not run yet
    if _is_from(data, "polars") and hasattr(data, "iter_slices"):
        return (part.to_arrow() for part in data.iter_slices(BATCH_ROWS))
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.ChunkedArray):
        return _streamed(data)
    return None


def _streamed(data: Any) -> Iterator[pa.Table] | None:
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError):  # a single column
        return None
    return (pa.Table.from_batches([batch]) for batch in reader)


def _lines(data: Any, fields: FieldReader) -> Iterator[str]:
    """The items as lines of JSON; bytes are text where the text is, as in Parquet, and hexadecimal elsewhere."""
    for number, item in enumerate(_items(data)):
        try:
            record = _record(item, number)
            if isinstance(record, dict):
                fields.decode_text(record)
            line = json.dumps(plain(record))
        except RecursionError as error:
            raise UsageError(f"item {number} of chunks is nested too deeply, or contains itself.") from error
        yield line


def _items(data: Any) -> Iterator[Any]:
    if _is_from(data, "pandas") and hasattr(data, "columns"):
        yield from _frame_rows(data)
    elif hasattr(data, "tolist") and hasattr(data, "dtype"):  # a column: of pandas, or a numpy array
        yield from data.tolist()
    else:
        yield from data


def _frame_rows(frame: Any) -> Iterator[dict[str, Any]]:
    """The rows of a data frame of pandas; an index that has a name is a column, one without is not."""
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    for start in range(0, len(frame), BATCH_ROWS):
        block = frame.iloc[start : start + BATCH_ROWS]
        for name in named:
            block = block.assign(**{str(name): block.index.get_level_values(name)})
        block = block.astype(object).where(block.notna(), None)  # NaN, NaT and NA are missing values
        yield from block.to_dict("records")


def _record(item: Any, number: int) -> Any:
    """An item as JSON has it, but for bytes."""
    if hasattr(item, "as_py"):  # a value of Arrow
        item = item.as_py()
    if not isinstance(item, Mapping):
        item = _dumped(item)
    if isinstance(item, Mapping):
        return plain(dict(item), keep_bytes=True)
    if isinstance(item, PLAIN):
        return plain(item)
    kind = f"{type(item).__module__}.{type(item).__qualname__}".removeprefix("builtins.")
    raise UsageError(f"item {number} of chunks is of the type {kind}. Give strings or dicts.")


def _dumped(item: Any) -> Any:
    """A document of another library as a dictionary; anything else as it is."""
    if hasattr(item, "model_dump"):  # pydantic: documents of LangChain, nodes of LlamaIndex, chunks of Docling
        return item.model_dump()
    if hasattr(item, "to_dict"):  # documents of Haystack, elements of Unstructured, chunks of Chonkie
        return item.to_dict()
    return dataclasses.asdict(item) if dataclasses.is_dataclass(item) and not isinstance(item, type) else item


def _is_from(data: Any, package: str) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(data).__mro__)
