"""Read chunk files record by record. What cannot be read is told apart and named, never dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ultimate_embedder.types import Rejected

LIST_KEYS = ("chunks", "data", "records", "items")
PARQUET_ROWS = 1024  # rows held in memory at a time

Record = tuple[int, Any]  # position in the file, counted from 0, and the parsed value


def read_records(path: Path, name: str) -> Iterator[Record | Rejected]:
    """Yield every record of a chunk file, or a `Rejected` for each part that cannot be read."""
    try:
        if path.suffix.lower() == ".parquet":
            yield from _read_parquet(path, name)
        elif path.suffix.lower() in (".jsonl", ".ndjson"):
            yield from _read_lines(path, name)
        else:
            yield from _read_json(path, name)
    except OSError as error:
        yield Rejected(name, None, f"the file cannot be read: {error.strerror or error}")


def _read_json(path: Path, name: str) -> Iterator[Record | Rejected]:
    raw = path.read_bytes()
    if not raw.strip(b"\0 \t\r\n"):
        yield Rejected(name, None, "the file is empty" if not raw else "the file holds only blanks or NUL bytes")
        return
    encoding = json.detect_encoding(raw)
    text = raw.decode(encoding, errors="surrogateescape" if encoding.startswith("utf-8") else "replace")
    text = text.removeprefix("\ufeff")
    del raw
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        yield from _read_broken_json(text, name, error)
    except RecursionError:
        yield Rejected(name, None, "the JSON is nested too deeply to be read")
    else:
        yield from _records_of(value, name)


def _records_of(value: Any, name: str) -> Iterator[Record | Rejected]:
    if isinstance(value, dict) and "text" not in value:
        key = next((key for key in LIST_KEYS if isinstance(value.get(key), list)), None)
        if key is None:
            keys = ", ".join(list(value)[:8]) or "none"
            reason = f"the object has no list under {', '.join(LIST_KEYS)}; its keys are: {keys}"
            yield Rejected(name, None, reason)
            return
        value = value[key]
    yield from enumerate(value if isinstance(value, list) else [value])


def _read_broken_json(text: str, name: str, error: json.JSONDecodeError) -> Iterator[Record | Rejected]:
    """Save what can be saved: JSON Lines under a .json name, or the whole records before a cut."""
    first_line = text.lstrip().split("\n", 1)[0]
    if first_line.startswith(("{", '"')) and _parses(first_line):
        for position, line in enumerate(text.split("\n")):
            yield from _line_record(line, position, name)
        return
    start = _LIST_START.match(text)
    saved, end = 0, start.end() if start else 0
    while start:
        end = _skip_blanks(text, end)
        try:
            value, end = _DECODER.raw_decode(text, end)
        except (json.JSONDecodeError, RecursionError):
            break
        yield saved, value
        saved += 1
        end = _skip_blanks(text, end)
        if text[end : end + 1] != ",":
            break
        end += 1
    yield Rejected(name, saved, _broken_reason(text, error, saved))


def _broken_reason(text: str, error: json.JSONDecodeError, saved: int) -> str:
    where = f"line {error.lineno} column {error.colno}"
    cut = error.pos >= len(text.rstrip("\0 \t\r\n")) - 1 or error.msg.startswith("Unterminated string")
    what = "the file is cut off" if cut else f"not valid JSON ({error.msg})"
    kept = f"the {saved} records before it were read" if saved else "nothing before it could be read"
    return f"{what} at {where}; {kept}. Write the file again with your chunker."


def _read_lines(path: Path, name: str) -> Iterator[Record | Rejected]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for position, line in enumerate(file):
            yield from _line_record(line, position, name)


def _line_record(line: str, position: int, name: str) -> Iterator[Record | Rejected]:
    line = line.strip("\0 \t\r\n")
    if not line:
        return
    try:
        yield position, _DECODER.decode(line)
    except json.JSONDecodeError as error:
        reason = f"line {position + 1} is not valid JSON ({error.msg} at column {error.colno})"
        yield Rejected(name, position, reason)
    except RecursionError:
        yield Rejected(name, position, f"line {position + 1} is nested too deeply to be read")


def _read_parquet(path: Path, name: str) -> Iterator[Record | Rejected]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    position = 0
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if "text" not in columns:
                yield Rejected(name, None, f'no "text" column; its columns are: {", ".join(columns)}')
                return
            for batch in file.iter_batches(PARQUET_ROWS):
                for row in batch.to_pylist():
                    yield position, {key: _plain(value) for key, value in row.items()}
                    position += 1
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = f"not a readable Parquet file ({str(error).splitlines()[0]}); {position} rows were read"
        yield Rejected(name, position, reason)


def _plain(value: Any) -> Any:
    """Turn what Parquet has and JSON has not (dates, bytes, decimals) into text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _parses(line: str) -> bool:
    try:
        _DECODER.decode(line.strip())
    except (json.JSONDecodeError, RecursionError):
        return False
    return True


def _skip_blanks(text: str, index: int) -> int:
    match = _BLANKS.match(text, index)
    return match.end() if match else index


# "[", or the object's way to its list: {"source": "x", "chunks": [
_LIST_START = re.compile(r'\s*(?:\{[^\[{}]*?"(?:' + "|".join(LIST_KEYS) + r')"\s*:\s*)?\[')
_BLANKS = re.compile(r"[ \t\r\n\0]*")
# strict=False: raw newlines and NUL bytes inside strings are common in the wild and harmless
_DECODER = json.JSONDecoder(strict=False)
