"""Option files: the options of a command as TOML, by their names on the command line."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from ultimate_embedder.config.declared import DeclaredOption
from ultimate_embedder.config.parse import suggest
from ultimate_embedder.errors import UsageError
from ultimate_embedder.files import atomic_file
from ultimate_embedder.terminal import printable

HEADER = "# Options of ultimate-embedder, written by --save-config."
MOST_BYTES = 1 << 20
KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    list: "a list of texts",
}
"""The types of TOML that options have, in words."""


def read_option_file(path: Path, options: Sequence[DeclaredOption]) -> dict[str, Any]:
    """The options in a file, by the names of their parameters; raises `UsageError` for what is no option."""
    by_key = {key: option for option in options for key in (_key(option), _written(option.name))}
    found: dict[str, Any] = {}
    for key, value in _read_toml(path).items():
        option = by_key.get(_written(key))
        if option is None:
            raise UsageError(f"{path}: there is no option {printable(key)}.{suggest(_written(key), by_key)}")
        if option.name in found:
            raise UsageError(f"{path}: {_key(option)} is given twice. Drop one.")
        found[option.name] = _checked(path, option, value)
    return found


def write_option_file(path: Path, options: Sequence[DeclaredOption], given: Mapping[str, Any], command: str) -> None:
    """Write the given options, in their groups. What `--save-config` has not written is not replaced."""
    _require_own(path)
    lines = [HEADER, f"# Use it with: {command}", "# Options that are not here have their defaults."]
    group = None
    for option in options:
        if option.name not in given:
            continue
        if option.about.group != group:
            group = option.about.group
            lines += ["", f"# {group}"]
        lines.append(f"{_key(option)} = {_toml(given[option.name])}")
    try:
        content = ("\n".join(lines) + "\n").encode()
        with atomic_file(path) as file:
            file.write(content)
    except UnicodeEncodeError as error:
        raise UsageError(f"--save-config {path}: {error.object!r} is not valid Unicode, and cannot be TOML.") from error
    except OSError as error:
        raise UsageError(f"--save-config {path} cannot be written: {error.strerror}. Choose another file.") from error


def _key(option: DeclaredOption) -> str:
    return _written(option.flag.lstrip("-"))


def _written(name: str) -> str:
    return name.lower().replace("_", "-")


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise UsageError(f"--config {path} is longer than {MOST_BYTES >> 20} MiB. Give a file of options.")
        parsed: dict[str, Any] = tomllib.loads(content.decode())
        return parsed
    except FileNotFoundError:
        raise UsageError(f"--config {path} does not exist. Write one with --save-config {path}.") from None
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f'{path} is not valid TOML: {error}. Write output = "out" or max-tokens = 512.') from error


def _checked(path: Path, option: DeclaredOption, value: Any) -> Any:
    """The value, if an option can have it; lists and numbers are as in Python."""
    kinds = {str, list} if option.about.many_paths else _kinds(option)
    is_list = isinstance(value, list) and list in kinds and all(isinstance(each, str) for each in value)
    if type(value) in kinds - {list} or is_list or (type(value) is int and float in kinds):
        return [Path(each) for each in value] if is_list and option.about.many_paths else value
    allowed = " or ".join(words for kind, words in KINDS.items() if kind in kinds)
    raise UsageError(f"{path}: {_key(option)} = {_shown(value)}: write {allowed}.")


def _kinds(option: DeclaredOption) -> set[type]:
    """The types of TOML that an option can have."""
    union = get_origin(option.type) in (Union, types.UnionType)
    plain = [each for each in (get_args(option.type) if union else (option.type,)) if each is not types.NoneType]
    known = {bool: bool, int: int, float: float}
    return {known.get(each, list if get_origin(each) is not None and _is_list(each) else str) for each in plain}


def _is_list(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Iterable)


def _shown(value: Any) -> str:
    return printable(json.dumps(value, default=str, ensure_ascii=False))


def _toml(value: Any) -> str:
    """A value of an option as TOML, whose texts and lists are written as in JSON."""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")


def _require_own(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            own = file.read(len(HEADER)) == HEADER.encode()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"--save-config {path} cannot be written: {error.strerror}. Choose another file.") from error
    if not own:
        raise UsageError(f"--save-config {path} exists and was not written by --save-config. Choose another file.")
