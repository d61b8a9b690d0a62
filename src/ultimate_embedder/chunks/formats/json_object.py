"""The records of a JSON file that is one object: a list or a mapping in it, or the object itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ultimate_embedder.chunks.formats.format import Record, first_keys
from ultimate_embedder.chunks.shapes import LIST_KEYS, find_shapes, find_text_key, find_wrapper
from ultimate_embedder.types import Rejected

DOCSTORE = "docstore/data"  # where LlamaIndex's document store has its nodes, by their ids
COLUMNS = (
    "the file has columns instead of records, as pandas writes them with to_json(). "
    'Write it with to_json(..., orient="records")'
)


def records_of(value: dict[str, Any], name: str) -> Iterator[Record | Rejected]:
    """Yield the records in an object."""
    records = _records_in(value)
    if isinstance(records, str):
        yield Rejected(name, None, records)
    else:
        yield from enumerate(records)


def _records_in(value: dict[str, Any]) -> Iterable[Any] | str:
    """The records in an object, or why there are none."""
    if _is_record(value):
        return [value]
    if isinstance(nodes := value.get(DOCSTORE), dict):
        return nodes.values()
    if _has_columns(value):
        return COLUMNS
    if (key := next((key for key in LIST_KEYS if isinstance(value.get(key), list)), None)) is not None:
        return _with_ids(value, key)
    if value and all(isinstance(each, dict) and _is_record(each) for each in value.values()):
        return (_with_id(key, each) for key, each in value.items())
    if value and not any(isinstance(each, list) for each in value.values()):
        return [value]  # its text may be in a field that the user names
    return f"the object has no list under {', '.join(LIST_KEYS)}; its keys are: {first_keys(value)}"


def _is_record(value: dict[str, Any]) -> bool:
    """Whether an object is a record, and not something that holds records."""
    if find_wrapper(value) or any(len(shape.text) > 1 for shape in find_shapes(value)):
        return True
    key = find_text_key(value)
    return key is not None and not isinstance(value[key], list | dict)


def _has_columns(value: dict[str, Any]) -> bool:
    """Whether an object is a table that pandas has written by columns, or its cells without the names of columns."""
    columns = list(value.values())
    if isinstance(value.get("columns"), list) and isinstance(value.get("data"), list):  # orient="split"
        return bool(value["data"]) and isinstance(value["data"][0], list)
    if columns and all(isinstance(column, dict) and column for column in columns):
        return all(column.keys() == columns[0].keys() for column in columns) and not _is_record(columns[0])
    return find_text_key(value) is not None and all(isinstance(column, list) for column in columns)


def _with_ids(value: dict[str, Any], key: str) -> Iterable[Any]:
    """The list under a key; with the lists of ids and metadata beside it, as Chroma gives them."""
    texts, ids, metadata = value[key], value.get("ids"), value.get("metadatas")
    if not isinstance(ids, list) or len(ids) != len(texts):
        return list(texts)
    others = metadata if isinstance(metadata, list) and len(metadata) == len(texts) else [None] * len(texts)
    columns = zip(texts, ids, others, strict=True)
    return ({"text": text, "id": own, **({"metadata": about} if about else {})} for text, own, about in columns)


def _with_id(key: str, record: dict[str, Any]) -> dict[str, Any]:
    """A record of a mapping; its key is its id, if it has none."""
    return record if "id" in record or find_wrapper(record) else {"id": key, **record}
