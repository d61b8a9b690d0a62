"""Names that become a file or folder of an output: of collections, exports and models. They come from outside."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from ultimate_embedder.terminal import is_hidden

LONGEST_BYTES = 200  # file systems allow 255, and temporary names are longer than the names they stand for
SEPARATORS = "/\\"
# Windows opens these as devices, whatever their suffix
DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))])


def name_problem(name: str, reserved: Collection[str] = (), longest_bytes: int = LONGEST_BYTES) -> str | None:
    """Why this cannot be the name of a file or folder, to follow the name in a sentence; None if it can.

    `reserved` are names that mean something else where it would be.
    """
    if not name.strip():
        return "is empty"
    if name.startswith("."):
        return "begins with a dot"  # also "." and "..", and what is still being written
    if separator := next((character for character in name if character in SEPARATORS), None):
        return f"contains {separator}"
    if name[1:2] == ":":
        return "begins with a drive of Windows"
    if any(is_hidden(character) for character in name):
        return "contains a control character, or is not valid Unicode"
    if len(name.encode()) > longest_bytes:
        return f"is longer than {longest_bytes} bytes"
    if name.split(".")[0].strip().lower() in DEVICES:
        return "is the name of a device on Windows"
    if same_name(name) in {same_name(word) for word in reserved}:
        return "is the name of a file that every output has"
    return None


def same_name(name: str) -> str:
    """Names for which this is equal are one file on a disk that ignores case, or that normalises Unicode."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()).rstrip(". ")
