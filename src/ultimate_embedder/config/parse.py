"""Parse and validate option values: sizes, shares, lists, choices."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import UsageError
from ultimate_embedder.types import HnswGraph

SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
HNSW_LIMITS = {"m": (2, 512), "ef_construct": (4, 10_000)}  # with more, the graph is larger than the vectors
LONGEST_WORD = 200  # that is compared with others
TRUE_WORDS = ("1", "true", "yes", "on")


def suggest(word: str, valid: Iterable[str]) -> str:
    """A suggestion for a misspelled word: ' Did you mean X?' or an empty string."""
    if len(word) > LONGEST_WORD:  # nobody meant it, and comparing takes long
        return ""
    close = difflib.get_close_matches(word.lower(), list(valid), n=1, cutoff=0.6)
    return f" Did you mean {close[0]}?" if close else ""


def one_of(word: str, valid: tuple[Any, ...], option: str) -> Any:
    """Check that `word` is one of `valid`."""
    if word in valid:
        return word
    raise UsageError(f"{option} {word}: not one of {', '.join(valid)}.{suggest(word, valid)}")


def split_words(value: str | Iterable[str]) -> list[str]:
    """The items of a list, or of a comma-separated string."""
    parts = value.split(",") if isinstance(value, str) else list(value)
    return [part.strip() for part in parts if part.strip()]


def parse_names(value: str | Iterable[str], option: str) -> tuple[str, ...]:
    """The items of a list or of a comma-separated string; the string must not be empty."""
    words = tuple(split_words(value))
    if isinstance(value, str) and not words:
        raise UsageError(f"{option} is empty. Give at least one name, or drop the option.")
    return words


def parse_flag(word: str | None) -> bool:
    """Whether the value of an environment variable means true."""
    return (word or "").strip().lower() in TRUE_WORDS


def parse_size(word: str | int, option: str) -> int:
    """Read a number of bytes: `15GiB`, `12GB`, `512MiB`, or just a number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(word).strip().lower())
    if match is None or match[2] not in SIZES:
        raise UsageError(f"{option}: {word!r} is not a size. Write 15GiB, 12GB or 512MiB, for example.")
    return int(float(match[1]) * SIZES[match[2]])


def parse_share(value: str | float, option: str) -> float:
    """Read `8%` or `0.08`."""
    word = str(value).strip()
    try:
        share = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"{option}: {word!r} is not a share. Write 8%, for example.") from None
    if not 0 <= share < 1:
        raise UsageError(f"{option} {word}: must be at least 0 and less than 100 %.")
    return share


def at_least(value: int, least: int, option: str) -> int:
    """Check that a value is an integer of at least `least`."""
    try:
        value = operator.index(value)
    except TypeError:
        raise UsageError(f"{option} {value!r}: not an integer.") from None
    if value < least:
        raise UsageError(f"{option} {value}: must be at least {least}.")
    return value


def existing_folder(path: str | Path, option: str) -> Path:
    """Check that a path is an existing folder."""
    if not Path(path).is_dir():
        raise UsageError(f"{option} {path} is not a folder. Give the --output of an earlier run.")
    return Path(path)


def parse_hnsw(value: str | bool | Mapping[str, int] | HnswGraph, option: str) -> HnswGraph | None:
    """Read `m=16,ef_construct=100`, or a part of it; True is the default graph, False is none."""
    if isinstance(value, HnswGraph):
        value = {"m": value.m, "ef_construct": value.ef_construct}
    if isinstance(value, bool):
        return HnswGraph() if value else None
    if not isinstance(value, str | Mapping):
        raise UsageError(f"{option} {value!r}: write m=16,ef_construct=100, for example.")
    words = [f"{name}={number}" for name, number in value.items()] if isinstance(value, Mapping) else split_words(value)
    numbers: dict[str, int] = {}
    for word in words:
        name, _, number = (part.strip() for part in word.partition("="))
        if name not in HNSW_LIMITS or not number.isdecimal():
            raise UsageError(f"{option} {word}: write m=16,ef_construct=100, for example, or {option} alone.")
        least, most = HNSW_LIMITS[name]
        if not least <= int(number) <= most:
            raise UsageError(f"{option} {word}: must be between {least} and {most}.")
        numbers[name] = int(number)
    return HnswGraph(**numbers)
