"""Completion of the command line by the shell, with argcomplete (the extra `completion`)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable

from ultimate_embedder.config import DeclaredOption
from ultimate_embedder.devices import DEVICE_WORDS
from ultimate_embedder.export import EXPORT_KINDS

VARIABLE = "_ARGCOMPLETE"  # set by the shell while it asks for words
Completer = Callable[..., Iterable[str]]


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and exit, if this process was started for that."""
    if VARIABLE in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)


def complete_words(option: DeclaredOption) -> Completer | None:
    """What lists the words that an option can have; None for files and for what has no list."""
    if option.about.choices:
        return lambda prefix, **_: option.about.choices
    known = {"exports": _exports, "models": model_names, "trust_remote_code": model_names, "devices": _devices}
    return known.get(option.name)


def complete_with(argument: argparse.Action, completer: Completer | None) -> None:
    """Let the shell complete an argument with these words; with files if there are none."""
    if completer is not None:
        argument.completer = completer  # type: ignore[attr-defined]


def model_names(prefix: str, **_: object) -> list[str]:
    """The known models, each after what is before the last comma."""
    from ultimate_embedder.models import MODELS

    return _after_comma(prefix, [spec.key for spec in MODELS])


def _exports(prefix: str, **_: object) -> list[str]:
    return _after_comma(prefix, [*EXPORT_KINDS, "none"])


def _devices(prefix: str, **_: object) -> list[str]:
    return [word for word in DEVICE_WORDS if not set(word) & set("NSIZE")]


def _after_comma(prefix: str, words: Iterable[str]) -> list[str]:
    before, comma, _ = prefix.rpartition(",")
    return [f"{before}{comma}{word}" for word in words]
