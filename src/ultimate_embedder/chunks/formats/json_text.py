"""Read JSON values one after the other from a text that is longer than memory."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, TextIO

from ultimate_embedder.chunks.formats.format import LARGEST_RECORD

BLOCK_CHARACTERS = 1 << 20
BLANKS = "\0 \t\r\n\ufeff"  # byte order marks are inside a file that was concatenated from others
# a value that was read up to here may go on in the next block; an escape or a number is not longer
UNCERTAIN_CHARACTERS = 32

_BLANKS = re.compile(f"[{BLANKS}]*")
_OUTSIDE_STRINGS = re.compile(r'["\[\]{}]')
_INSIDE_STRINGS = re.compile(r'["\\]')
_OPENING = ("{", "[", '"')


@dataclass(frozen=True)
class LongInteger:
    """An integer with more digits than Python converts; its digits."""

    digits: str


class RecordTooLongError(Exception):
    """A value has more than `LARGEST_RECORD` characters."""


def _long_integer(digits: str) -> int | LongInteger:
    try:
        return int(digits)
    except ValueError:
        return LongInteger(digits)


# strict=False: raw newlines and NUL bytes inside strings are common in the wild and harmless
_DECODER = json.JSONDecoder(strict=False)
_SLOW_DECODER = json.JSONDecoder(strict=False, parse_int=_long_integer)


def decode_value(text: str, start: int) -> tuple[Any, int]:
    """The value at `start`, and where it ends. Raises JSONDecodeError or RecursionError."""
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer of thousands of digits
        return _SLOW_DECODER.raw_decode(text, start)


def decode_whole(text: str) -> Any:
    """The one value that a text consists of. Raises JSONDecodeError or RecursionError."""
    start = skip_blanks(text, 0)
    value, end = decode_value(text, start)
    end = skip_blanks(text, end)
    if end < len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def skip_blanks(text: str, start: int) -> int:
    """The next position that is not blank."""
    match = _BLANKS.match(text, start)
    return match.end() if match else start


@dataclass(frozen=True)
class Damage:
    """What is wrong in a JSON text, and where."""

    message: str
    line: int
    column: int
    truncated: bool
    """Whether the text ended too early, rather than being malformed."""


class DamagedError(Exception):
    """The text is not valid JSON from here on."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(damage.message)
        self.damage = damage


class JsonText:
    """A JSON text of which only what is being read is in memory."""

    def __init__(self, file: TextIO | None, text: str = "", start: int = 0) -> None:
        """Read `text` from `start`, then the file."""
        self.text = text
        self.at = start
        """Where in `text` to read on."""
        self._file = file
        self._lines_before = 0
        self._columns_before = 0

    @property
    def is_empty(self) -> bool:
        """Whether the file has no characters at all, at its end."""
        return not self.text and not self._lines_before and not self._columns_before

    def peek(self) -> str:
        """The next character that is not blank, which is where it reads on; empty at the end."""
        while True:
            self.at = skip_blanks(self.text, self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._more():
                return ""

    def value(self) -> Any:
        """The value that begins here. Raises DamagedError, RecordTooLongError or RecursionError."""
        while True:
            try:
                value, end = decode_value(self.text, self.at)
            except json.JSONDecodeError as error:
                if not self._may_go_on(error) or not self._more_of_value():
                    raise DamagedError(self.damage(error)) from error
            else:
                # a number may go on in the next block
                if len(self.text) - end > UNCERTAIN_CHARACTERS or not self._more():
                    self.at = end
                    return value

    def skip(self) -> bool:
        """Go behind the value that begins here without reading it; False if its end cannot be found."""
        if self.text[self.at : self.at + 1] not in _OPENING:
            return False
        depth, quoted = 0, False
        while True:
            match = (_INSIDE_STRINGS if quoted else _OUTSIDE_STRINGS).search(self.text, self.at)
            self.at = match.end() if match else len(self.text)
            mark = match.group() if match else ""
            if mark in ("", "\\"):
                if self.at == len(self.text) and not self._more():
                    return False
                self.at += mark == "\\"  # over the character that is escaped
                continue
            if mark == '"':
                quoted = not quoted
            else:
                depth += 1 if mark in "[{" else -1
            if not quoted and depth <= 0:
                return True

    def first_line(self) -> str:
        """The rest of the line, or as much of it as a record may have."""
        while (end := self.text.find("\n", self.at)) < 0 and len(self.text) - self.at <= LARGEST_RECORD:
            if not self._more():
                break
        return self.text[self.at : end if end >= 0 else len(self.text)]

    def rest(self, most: int) -> str | None:
        """All that follows; None if it has more characters than that."""
        while len(self.text) - self.at <= most:
            if not self._more():
                return self.text[self.at :]
        return None

    def damage(self, error: json.JSONDecodeError) -> Damage:
        """What is wrong and where, counted from the beginning of the file."""
        line = self._lines_before + error.lineno
        column = error.colno + (self._columns_before if error.lineno == 1 else 0)
        return Damage(error.msg, line, column, _is_truncated(self.text, error))

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether more of the text might mend it."""
        return error.msg.startswith("Unterminated string") or len(self.text) - error.pos < UNCERTAIN_CHARACTERS

    def _more_of_value(self) -> bool:
        if len(self.text) - self.at > LARGEST_RECORD:
            raise RecordTooLongError
        return self._more()

    def _more(self) -> bool:
        """Forget what was read, and read as much again as is left: a long value is not tried too often."""
        if self._file is None:
            return False
        kept = self.text[self.at :]
        block = self._file.read(max(BLOCK_CHARACTERS, len(kept)))
        if not block:
            self._file = None
            return False
        newlines = self.text.count("\n", 0, self.at)
        self._lines_before += newlines
        last = self.text.rfind("\n", 0, self.at)
        self._columns_before = self.at - last - 1 if newlines else self._columns_before + self.at
        self.text, self.at = kept + block, 0
        return True


def _is_truncated(text: str, error: json.JSONDecodeError) -> bool:
    if error.msg == "Extra data":
        return False
    rest = text[error.pos : error.pos + UNCERTAIN_CHARACTERS]
    return (
        error.msg.startswith("Unterminated string")
        or len(rest) <= 1
        or (error.msg.startswith("Invalid \\") and len(rest) < len("\\uXXXX") + 1)
        or any(word.startswith(rest) for word in ("true", "false", "null", "NaN", "Infinity", "-Infinity"))
    )
