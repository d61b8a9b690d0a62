"""Ways in which a file of an output is damaged: by a kill, a full disk, a power cut, another program, or on purpose."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ultimate_embedder.state import sealed

Damage = Callable[[Path], None]
HUGE = 10**30
WRONG_VALUES: tuple[Any, ...] = (None, True, -1, HUGE, 1.5, "../../x", [], {}, [[]], "\ud800")


def damages() -> dict[str, Damage]:
    """What can happen to any file, whatever is in it."""
    return {
        "empty": lambda path: _write(path, b""),
        "first byte": lambda path: _write(path, path.read_bytes()[:1]),
        "first half": lambda path: _write(path, path.read_bytes()[: path.stat().st_size // 2]),
        "last byte missing": lambda path: _write(path, path.read_bytes()[:-1]),
        "last ten bytes missing": lambda path: _write(path, path.read_bytes()[:-10]),
        "zeros": lambda path: _write(path, bytes(path.stat().st_size)),
        "second half zeros": _zero_second_half,
        "random bytes": lambda path: _write(path, random.Random(7).randbytes(path.stat().st_size)),
        "one bit": lambda path: flip_bit(path, path.stat().st_size // 2),
        "not UTF-8": lambda path: _write(path, path.read_bytes().replace(b'"', b'"\xff', 3)),
        "a list": lambda path: _write(path, b"[]\n"),
        "a number": lambda path: _write(path, b"17\n"),
        "a text": lambda path: _write(path, b'"text"\n'),
        "null": lambda path: _write(path, b"null\n"),
        "no fields": lambda path: _write(path, b"{}\n"),
        "deep nesting": lambda path: _write(path, b"[" * 100_000 + b"\n"),
        "deep nesting of objects": lambda path: _write(path, b'{"a":' * 100_000 + b"\n"),
        "huge number": lambda path: _write(path, b"1" * 10_000 + b"\n"),
        "a folder": _make_folder,
        "a link to nothing": _make_link,
    }


def edits(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object without each of its values in turn, and with a wrong one in its place, at every depth."""
    for place in places(content):
        words = ".".join(map(str, place))
        yield f"without {words}", edited(content, place, None, remove=True)
        for value in WRONG_VALUES:
            yield f"{words} = {json.dumps(value)[:12]}", edited(content, place, value)
    yield "an unknown field", {**content, "unknown": 1}


def unsealed(content: dict[str, Any]) -> dict[str, Any]:
    """The object as an earlier version wrote it, without checksum."""
    return {name: value for name, value in content.items() if name != "checksum"}


def resealed(content: dict[str, Any]) -> dict[str, Any]:
    """The object with the checksum that fits it: another program's, or somebody's who knows how."""
    return sealed(unsealed(content))


def flip_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _zero_second_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("inside")


def _make_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values are in an object, at every depth."""
    named = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in named:
        if (*above, name) != ("checksum",):
            yield (*above, name)
            yield from places(inner, (*above, name))


def edited(content: dict[str, Any], place: tuple[Any, ...], value: Any, remove: bool = False) -> dict[str, Any]:
    """The object with another value at that place, or without one."""
    copy: dict[str, Any] = json.loads(json.dumps(content))
    inner: Any = copy
    for name in place[:-1]:
        inner = inner[name]
    if remove:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return copy


def restore(source: Path, target: Path) -> Path:
    """A fresh copy of an output, links and all."""
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target, symlinks=True))
