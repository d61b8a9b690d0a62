"""State files: what a later run reads in an output. Each is JSON with a checksum of its own content.

What is in a file never raises here: it is read, or it is `Damaged`, and then what it described is computed again.
Files of versions before the checksum are told by its absence, and must have exactly the fields that are known.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ultimate_embedder.files import delete, write_json

CHECKSUM = "checksum"
LARGEST_BYTES = 256 << 20
LARGEST_COUNT = 1 << 48
LONGEST_INTEGER = 300  # characters: what is longer fits no float
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Damaged:
    """A state file that cannot be used. `problem` continues a sentence that begins with its path."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


class UnfitError(ValueError):
    """A value that a state file must not have; the message says which and why."""


def write_state(path: Path, data: Mapping[str, Any]) -> None:
    """Write a state file atomically, with the checksum of `data`."""
    make_way(path)
    write_json(path, sealed(data))


def read_state(path: Path, parse: Callable[[Fields], Parsed]) -> Parsed | Damaged | None:
    """What `parse` makes of a state file; None if there is no such file."""
    content = read_content(path)
    if content is None or isinstance(content, Damaged):
        return content
    try:
        return parse_state(content, parse)
    except UnfitError as error:
        return Damaged(path, f"is damaged ({error})")


def read_content(path: Path) -> bytes | Damaged | None:
    """The bytes of a state file; None if there is none."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
            return Damaged(path, "is damaged (it is not a file)")
        if found.st_size > LARGEST_BYTES:
            return Damaged(path, f"is damaged (it has {found.st_size} bytes)")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Damaged(path, f"cannot be read ({error.strerror})")


def parse_state(content: bytes, parse: Callable[[Fields], Parsed]) -> Parsed:
    """What `parse` makes of a JSON object with or without checksum; raises `UnfitError`."""
    try:
        values = json.loads(content.decode("utf-8"), parse_int=read_integer)
        if not isinstance(values, dict):
            raise UnfitError("it is no JSON object")
        has_checksum = CHECKSUM in values
        if has_checksum and values.pop(CHECKSUM) != state_checksum(values):
            raise UnfitError("its checksum does not match")
    except UnfitError:
        raise
    except UnicodeDecodeError as error:
        raise UnfitError("it is not UTF-8") from error
    except RecursionError as error:
        raise UnfitError("it is nested too deeply") from error
    except ValueError as error:
        raise UnfitError("it is empty" if not content else f"it is not JSON: {error}") from error
    fields = Fields(values, sealed=has_checksum)
    parsed = parse(fields)
    if not has_checksum and (unknown := next(fields.unused(), None)) is not None:
        raise UnfitError(f"it has the unknown field {unknown!r}, and no checksum")
    return parsed


def read_integer(word: str, longest: int = LONGEST_INTEGER) -> int:
    """A whole number in JSON; raises `UnfitError` if it has too many digits."""
    if len(word) > longest:
        raise UnfitError(f"it has a number of {len(word)} digits")
    return int(word)


def read_finite(word: str) -> float:
    """The same for another number, or for one of the words `NaN` and `Infinity`, which are no JSON."""
    value = float(word)
    if not math.isfinite(value):
        raise UnfitError("it has a number that is not finite")
    return value


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with its checksum, as it is written."""
    return {**data, CHECKSUM: state_checksum(data)}


def state_checksum(data: Mapping[str, Any]) -> str:
    """The checksum of JSON data, whatever the order of its fields."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def make_way(path: Path) -> None:
    """Delete a folder that is where a state file belongs: a file cannot be renamed to it."""
    if path.is_dir():
        delete(path)


class Fields:
    """The values of a JSON object by name; each method raises `UnfitError` if its value is missing or unfit."""

    def __init__(self, values: Mapping[str, Any], *, sealed: bool) -> None:
        self.sealed = sealed
        """Whether the file has a checksum, which is right."""
        self._values = values
        self._used: set[str] = set()
        self._inner: list[Fields] = []

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def unused(self) -> Iterator[str]:
        """Fields that were not asked for, also those of inner objects."""
        yield from (name for name in self._values if name not in self._used)
        for inner in self._inner:
            yield from inner.unused()

    def values(self) -> dict[str, Any]:
        """All values, unchecked."""
        self._used.update(self._values)
        return dict(self._values)

    def text(self, name: str) -> str:
        """A text that can be encoded."""
        value = self._value(name)
        if not isinstance(value, str):
            raise UnfitError(f"{name} is not a text")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UnfitError(f"{name} is not valid Unicode") from error
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text, or null."""
        return None if self._value(name) is None else self.text(name)

    def sha256(self, name: str) -> str:
        """A checksum in hexadecimal digits."""
        value = self.text(name)
        if not re.fullmatch("[0-9a-f]{64}", value):
            raise UnfitError(f"{name} is not a sha256")
        return value

    def count(self, name: str, *, least: int = 0, most: int = LARGEST_COUNT) -> int:
        """A whole number between these bounds."""
        value = self._value(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise UnfitError(f"{name} is not a whole number from {least} to {most}")
        return value

    def count_or_none(self, name: str, *, least: int = 0, most: int = LARGEST_COUNT) -> int | None:
        """A whole number, or null."""
        return None if self._value(name) is None else self.count(name, least=least, most=most)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._value(name)
        if not isinstance(value, bool):
            raise UnfitError(f"{name} is not true or false")
        return value

    def number(self, name: str) -> float:
        """A finite number."""
        value = self._value(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise UnfitError(f"{name} is not a number")
        return float(value)

    def inner(self, name: str) -> Fields:
        """An inner object."""
        return self._object(name, self._value(name))

    def inner_list(self, name: str) -> list[Fields]:
        """A list of objects."""
        return [self._object(name, value) for value in self._list(name)]

    def texts(self, name: str) -> list[str]:
        """A list of texts."""
        values = dict(enumerate(self._list(name)))
        inner = Fields({f"{name}[{number}]": value for number, value in values.items()}, sealed=self.sealed)
        return [inner.text(each) for each in inner]

    def _value(self, name: str) -> Any:
        self._used.add(name)
        if name not in self._values:
            raise UnfitError(f"it has no field {name!r}")
        return self._values[name]

    def _list(self, name: str) -> list[Any]:
        value = self._value(name)
        if not isinstance(value, list):
            raise UnfitError(f"{name} is not a list")
        return value

    def _object(self, name: str, value: Any) -> Fields:
        if not isinstance(value, dict):
            raise UnfitError(f"{name} is not an object")
        inner = Fields(value, sealed=self.sealed)
        self._inner.append(inner)
        return inner


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False
