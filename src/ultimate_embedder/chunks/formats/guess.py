"""What a file is whose name does not tell, such as standard input: the suffix that it should have."""

from __future__ import annotations

import json
from pathlib import Path

from ultimate_embedder.chunks.formats.arrow_messages import CONTINUES
from ultimate_embedder.chunks.formats.arrow_messages import MAGIC as ARROW
from ultimate_embedder.chunks.formats.json_text import BLANKS, decode_whole
from ultimate_embedder.chunks.formats.opened import open_file, open_text
from ultimate_embedder.chunks.formats.parquet_footer import MAGIC as PARQUET

LOOK_CHARACTERS = 1 << 16
BINARY = {PARQUET: ".parquet", ARROW: ".arrow", CONTINUES.to_bytes(4, "little"): ".arrow"}


def guess_suffix(path: Path) -> str:
    """The suffix of the format that a file has, by its first bytes. May raise OSError."""
    with open_file(path) as file:
        first = file.read(max(map(len, BINARY)))
    for magic, suffix in BINARY.items():
        if first.startswith(magic):
            return suffix
    with open_text(path) as text:
        start = text.read(LOOK_CHARACTERS).lstrip(BLANKS)
    if start[:1] in ("[", "{", ""):
        return ".json"
    line, _, _ = start.partition("\n")
    return ".json" if _is_json(line) or (line == start and line.startswith('"')) else ".csv"


def _is_json(line: str) -> bool:
    """Whether a line is a JSON value; `"text","id"` is a header."""
    try:
        decode_whole(line)
    except (json.JSONDecodeError, RecursionError):
        return False
    return True
