"""How other tools write a chunk, as plain data: by which keys a record is recognised, and where its fields are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

KeyPath = tuple[str, ...]

TEXT = "text"
METADATA = "metadata"
ID_KEYS = ("chunk_id", "id", "_id")
TEXT_KEYS = (TEXT, "page_content", "content", "contents", "body", "chunk", "chunk_text", "passage", "document")
"""What the text is called in records of no known tool, the likeliest first."""
LIST_KEYS = ("chunks", "data", "records", "items", "documents", "docs", "nodes", "elements", "passages")
"""What the list is called in an object that holds one."""


@dataclass(frozen=True)
class Shape:
    """A kind of record: a record that has all `keys` is one."""

    tool: str
    keys: frozenset[str]
    text: KeyPath
    id: str | None = None
    metadata: str = METADATA
    marker: str | None = None
    """A key that the metadata must have as well, where other tools use the same keys for a record."""
    own_keys: frozenset[str] | None = None
    """The tool's own keys, where all others are the metadata."""


@dataclass(frozen=True)
class Wrapper:
    """An object that holds one record, and says of which class it is."""

    tool: str
    keys: frozenset[str]
    inside: str


SHAPES = (
    Shape("LangChain", frozenset(["page_content"]), ("page_content",), id="id"),
    Shape("LlamaIndex", frozenset(["id_", TEXT]), (TEXT,), id="id_"),
    Shape("LlamaIndex", frozenset(["id_", "text_resource"]), ("text_resource", TEXT), id="id_"),
    Shape("Unstructured", frozenset(["element_id", TEXT]), (TEXT,), id="element_id"),
    Shape("Docling", frozenset([TEXT, "meta"]), (TEXT,), metadata="meta", marker="doc_items"),
    Shape("Chonkie", frozenset([TEXT, "start_index", "end_index", "token_count"]), (TEXT,), id="id"),
    Shape("BEIR", frozenset(["_id", "title", TEXT]), (TEXT,), id="_id"),
    Shape("Haystack", frozenset(["content", "meta"]), ("content",), id="id", metadata="meta"),
    Shape(
        "Haystack",  # to_dict() puts the metadata beside its own keys
        frozenset(["content", "blob", "score"]),
        ("content",),
        id="id",
        own_keys=frozenset(["id", "content", "blob", "dataframe", "score", "embedding", "sparse_embedding"]),
    ),
)
WRAPPERS = (
    Wrapper("LangChain", frozenset(["lc", "kwargs"]), "kwargs"),
    Wrapper("LlamaIndex", frozenset(["__data__", "__type__"]), "__data__"),
)


def find_shapes(keys: Collection[str]) -> list[Shape]:
    """The shapes that a record with these keys may have, in order; "text" is the text wherever there is one."""
    return [shape for shape in SHAPES if shape.keys.issubset(keys) and (shape.text == (TEXT,) or TEXT not in keys)]


def find_wrapper(keys: Collection[str]) -> Wrapper | None:
    """What an object with these keys wraps, if it is a wrapper."""
    return next((wrapper for wrapper in WRAPPERS if wrapper.keys.issubset(keys)), None)


def find_text_key(keys: Collection[str]) -> str | None:
    """The key of the text in a record of no known tool, or the column of the text in a table."""
    spelled = [*TEXT_KEYS, *(spelling for key in TEXT_KEYS for spelling in (key.capitalize(), key.upper()))]
    return next((key for key in spelled if key in keys), None)
