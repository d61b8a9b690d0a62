"""The argument parser: suggestions for misspelled options, and arguments generated from option declarations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn, TypeAlias

from ultimate_embedder.cli.process import EXIT_USAGE
from ultimate_embedder.config import DeclaredOption, declared_options, suggest
from ultimate_embedder.terminal import printable


class SuggestingParser(argparse.ArgumentParser):
    """argparse with suggestions for misspelled options, and without abbreviations."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **settings})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown arguments in the parser of the command, which knows the options to suggest."""
        self._given = list(args if args is not None else sys.argv[1:])
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and not self._subparsers:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the error, and for each unknown option the most similar one."""
        known = [option for action in self._actions for option in action.option_strings]
        given = [word.partition("=")[0] for word in getattr(self, "_given", []) if word.startswith("--")]
        hints = "".join(suggest(word, known) for word in given if word not in known)
        told = printable(f"error: {message}.{hints}")
        self.exit(EXIT_USAGE, f"{told}\n'{self.prog} --help' lists the options.\n")


Commands: TypeAlias = "argparse._SubParsersAction[SuggestingParser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]


def add_command(commands: Commands, name: str, run: Run, *, help: str, **settings: Any) -> SuggestingParser:
    """Add a command and the function that runs it."""
    parser = commands.add_parser(name, help=help, **settings)
    parser.set_defaults(run=run)
    return parser


def add_option_groups(
    parser: argparse.ArgumentParser, function: Callable[..., Any]
) -> dict[str, argparse._ArgumentGroup]:
    """Add an argument for each parameter of `function`, in its group; returns the groups by title."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in declared_options(function):
        if option.about.only_in_python:
            continue
        title = option.about.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_option(groups[title], option)
    return groups


def add_options(parser: argparse.ArgumentParser, function: Callable[..., Any], names: Collection[str]) -> None:
    """Add an argument for each of the named parameters of `function`."""
    for option in declared_options(function):
        if option.name in names:
            _add_option(parser, option)


def _add_option(target: argparse._ActionsContainer, option: DeclaredOption) -> None:
    text = option.help.replace("%", "%%")
    if option.about.positional:
        target.add_argument(option.name, metavar=option.flag, help=text)
    elif option.is_switch:
        target.add_argument(option.flag, dest=option.name, action="store_true", help=text)
    elif option.about.repeatable:
        target.add_argument(
            option.flag, dest=option.name, metavar=option.about.metavar, action="append", default=[], help=text
        )
    else:
        target.add_argument(
            option.flag,
            dest=option.name,
            metavar=option.about.metavar,
            nargs=None if option.about.alone is None else "?",
            const=option.about.alone,
            type=int if option.is_number else str,
            default=None if option.required else option.default,
            required=option.required,
            help=text,
        )
