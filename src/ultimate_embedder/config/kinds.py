"""Whether a value is of a declared type, so that a wrong one is answered with a sentence and not with a traceback."""

from __future__ import annotations

import numbers
import operator
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "text",
    Path: "a path",
    Iterable[str]: "a list of texts",
    Mapping[str, float]: "a dictionary of numbers",
    Mapping[str, int]: "a dictionary of integers",
}


def accepts(declared: Any, value: Any) -> bool:
    """Whether the value is of the declared type; of a type that is not known here everything is."""
    if _is_union(declared):
        return any(accepts(each, value) for each in get_args(declared))
    if get_origin(declared) is Literal:
        return any(isinstance(value, type(each)) for each in get_args(declared))
    check = _CHECKS.get(declared)
    return check is None or check(value)


def in_words(declared: Any) -> str:
    """What may be given: `text or a list of texts`."""
    kinds = get_args(declared) if _is_union(declared) else (declared,)
    known = [type(get_args(kind)[0]) if get_origin(kind) is Literal else kind for kind in kinds]
    return " or ".join(dict.fromkeys(WORDS[kind] for kind in known if kind in WORDS))


def _is_union(declared: Any) -> bool:
    return get_origin(declared) in (Union, types.UnionType)


def _is_int(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_list_of_texts(value: Any) -> bool:
    """Also a tuple or a set; not a generator, which can be read only once."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Iterator)
    return is_list and all(isinstance(item, str) for item in value)


def _is_dictionary(value: Any, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and of(value[key]) for key in value)


_CHECKS: dict[Any, Callable[[Any], bool]] = {
    bool: lambda value: isinstance(value, bool),
    int: _is_int,
    float: _is_number,
    str: lambda value: isinstance(value, str),
    Path: lambda value: isinstance(value, os.PathLike),
    types.NoneType: lambda value: value is None,
    Iterable[str]: _is_list_of_texts,
    Mapping[str, float]: partial(_is_dictionary, of=_is_number),
    Mapping[str, int]: partial(_is_dictionary, of=_is_int),
}
