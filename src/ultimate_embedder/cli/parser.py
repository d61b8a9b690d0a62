"""The argument parser: suggestions for misspelled words, and arguments generated from option declarations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from ultimate_embedder.cli.completion import complete_with, complete_words
from ultimate_embedder.cli.logs import MESSAGES, add_verbose, log_options, with_logs
from ultimate_embedder.cli.process import EXIT_USAGE
from ultimate_embedder.config import DeclaredOption, declared_options, suggest
from ultimate_embedder.terminal import printable


class HelpFormatter(argparse.HelpFormatter):
    """A short usage line, `-o, --output DIR` for two flags, paragraphs wrapped and examples kept as they are."""

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: Any = None) -> None:
        """Name what must be given, and no optional flags: those are listed below."""
        actions = list(actions)
        if usage is None:
            needed = [action for action in actions if action.required or not action.option_strings]
            usage = " ".join(["%(prog)s", *map(self._as_used, needed), "[options]"])
        super().add_usage(usage, actions, groups, prefix)

    def _as_used(self, action: argparse.Action) -> str:
        if action.option_strings:
            return self._format_action_invocation(action)
        return self._format_args(action, self._get_default_metavar_for_positional(action))

    def _format_action(self, action: argparse.Action) -> str:
        lines = super()._format_action(action)
        if isinstance(action, argparse._SubParsersAction):  # the commands alone: the heading says what they are
            return lines.partition("\n")[2].replace("\n  ", "\n").removeprefix("  ")
        return lines

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line.startswith(" ") else fill(line, width, indent) for line in text.splitlines())

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {metavar}"


class SuggestingParser(argparse.ArgumentParser):
    """argparse with suggestions for misspelled options and commands, and without abbreviations."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._given: list[str] = []
        super().__init__(*arguments, **{"allow_abbrev": False, "formatter_class": HelpFormatter, **settings})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reject unknown arguments in the parser of the command, which knows the options to suggest."""
        self._given = list(args if args is not None else sys.argv[1:])
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and not self._subparsers:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def format_help(self) -> str:
        """The help, with the options that all commands have at its end."""
        self._action_groups.sort(key=lambda group: group.title == MESSAGES)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print the error, and for each unknown option the most similar one; the help, if nothing was given."""
        if self._subparsers and not self._given:
            self.exit(EXIT_USAGE, self.format_help())
        known = [option for action in self._actions for option in action.option_strings]
        given = [word.partition("=")[0] for word in self._given if word.startswith("-")]
        hints = "".join(suggest(word, known) or _with_letter(word, known) for word in given if word not in known)
        told = printable(f"error: {message.removeprefix('argument ').rstrip('.')}.{hints}")
        self.exit(EXIT_USAGE, f"{told}\n'{self.prog} --help' lists the options.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if not isinstance(action, argparse._SubParsersAction) or value in action.choices:
            super()._check_value(action, value)
            return
        kind = str(action.metavar).lower()
        article = "an" if kind[0] in "aeiou" else "a"
        told = printable(f"error: {value} is not {article} {kind}.{self._meant(action, value)}")
        self.exit(EXIT_USAGE, f"{told}\n'{self.prog} --help' lists the {kind}s.\n")

    def _meant(self, action: argparse._SubParsersAction[Any], value: str) -> str:
        """What may have been meant by a word that is no command: a command, one of a command, or a folder."""
        inner = [f"{name} {word}" for name, parser in action.choices.items() for word in _actions_of(parser)]
        if same := [words for words in inner if words.endswith(f" {value}")]:
            return f" Did you mean {same[0]}?"
        if self._given[0].startswith("-"):
            return f" Options follow the {str(action.metavar).lower()}."
        if "embed" in action.choices and ("/" in value or Path(value).exists()):
            return f" To embed what is there: {self.prog} embed {value} -o OUT"
        return suggest(value, action.choices) or f" The {str(action.metavar).lower()}s are {', '.join(action.choices)}."


def _with_letter(word: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown flag of one letter: the options that begin with it."""
    found = [option for option in known if len(word) == 2 and option.startswith(f"-{word}")]
    return f" Did you mean {' or '.join(found)}?" if found else ""


def _actions_of(parser: argparse.ArgumentParser) -> Iterable[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices


Commands: TypeAlias = "argparse._SubParsersAction[SuggestingParser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]


def add_command(
    commands: Commands,
    name: str,
    run: Run,
    *,
    help: str,
    examples: str,
    epilog: str = "",
    logs: bool = True,
    **settings: Any,
) -> SuggestingParser:
    """Add a command and the function that runs it; `examples` are lines of its help, without the name of the program.

    With `logs` it has the options about messages.
    """
    settings.setdefault("description", f"{help[0].upper()}{help[1:]}.")
    shown = "\n".join(["examples:", *(f"  ultimate-embedder {line}" for line in examples.splitlines())])
    parser = commands.add_parser(name, help=help, epilog=f"{shown}\n\n{epilog}".rstrip(), **settings)
    parser.set_defaults(run=with_logs(run) if logs else run)
    if logs:
        group = parser.add_argument_group(MESSAGES)
        add_verbose(group)
        for option in declared_options(log_options):
            _add_option(group, option)
    return parser


def whole_number(word: str) -> int:
    """A number from the command line."""
    try:
        return int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number") from None


def add_option_groups(
    parser: argparse.ArgumentParser, *functions: Callable[..., Any], in_file: bool = True
) -> dict[str, argparse._ArgumentGroup]:
    """Add an argument for each parameter of the functions, in its group; returns the groups by title.

    Where they may be in an option file (`in_file`), those that are not given are not in the result, and none is
    required.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in (option for function in functions for option in declared_options(function)):
        if option.about.only_in_python:
            continue
        title = option.about.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_option(groups[title], option, may_be_in_file=in_file)
    return groups


def add_hidden_options(
    parser: argparse.ArgumentParser, function: Callable[..., Any], shown: Collection[str], title: str
) -> None:
    """Add all parameters of `function`; those that are `shown` in a group, and the others without a word in the help.

    For a command that takes the options of another one, which describes them. None is required.
    """
    group = parser.add_argument_group(title)
    for option in declared_options(function):
        if not option.about.only_in_python:
            _add_option(group, option, may_be_in_file=True, hidden=option.name not in shown)


def add_options(parser: argparse.ArgumentParser, function: Callable[..., Any], names: Collection[str]) -> None:
    """Add an argument for each of the named parameters of `function`."""
    for option in declared_options(function):
        if option.name in names:
            _add_option(parser, option)


def _add_option(
    target: argparse._ActionsContainer, option: DeclaredOption, may_be_in_file: bool = False, hidden: bool = False
) -> None:
    text = argparse.SUPPRESS if hidden else option.help.replace("%", "%%")
    flags = [flag for flag in (option.about.short, option.flag) if flag]
    default = argparse.SUPPRESS if may_be_in_file else None if option.required else option.default
    if option.about.positional:
        settings: dict[str, Any] = {}
        if option.about.many_paths or may_be_in_file:
            settings["nargs"] = "*" if option.about.many_paths else "?"
            settings["default"] = default
        if option.about.many_paths:
            settings["type"] = Path  # a list of strings would be texts
        target.add_argument(option.name, metavar=option.flag, help=text, **settings)
    elif option.is_switch:
        target.add_argument(*flags, dest=option.name, action="store_true", default=default, help=text)
        if may_be_in_file:  # to turn off what the file turns on
            off = f"--no-{option.flag[2:]}"
            target.add_argument(off, dest=option.name, action="store_false", default=default, help=argparse.SUPPRESS)
    elif option.about.repeatable:
        more = [] if default is not argparse.SUPPRESS else default
        target.add_argument(
            *flags, dest=option.name, metavar=option.about.metavar, action="append", default=more, help=text
        )
    else:
        added = target.add_argument(
            *flags,
            dest=option.name,
            metavar=option.about.metavar,
            nargs=None if option.about.alone is None else "?",
            const=option.about.alone,
            type=whole_number if option.is_number else str,
            default=default,
            required=option.required and not may_be_in_file,
            help=text,
        )
        complete_with(added, complete_words(option))
