"""Declare an option: a function parameter annotated with `Annotated[type, Option(...)]`.

The command line, the validation and the signature of the Python API are generated from such parameters.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from ultimate_embedder.config.kinds import accepts, in_words
from ultimate_embedder.config.parse import one_of, suggest
from ultimate_embedder.errors import UsageError

P = ParamSpec("P")
Made = TypeVar("Made")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Option:
    """What a parameter is on the command line. Name, type and default are those of the parameter."""

    help: str
    group: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    """The valid values, if there is a list of them."""
    read: Callable[..., Any] | None = None
    """Checks and converts a value: `read(value, option="--flag")`. Not called for None, which means "not given"."""
    default: str | None = None
    """Description of the default, if its value does not explain it."""
    flag: str | None = None
    """The flag, if it is not the parameter's name."""
    short: str | None = None
    """A second flag of one letter."""
    alone: str | None = None
    """The value that the flag alone stands for, where a value may be left out."""
    positional: bool = False
    many_paths: bool = False
    """Whether it takes any number of paths; only if it is positional."""
    field: str | None = None
    """The field of the result, if its name is not the parameter's."""
    repeatable: bool = False
    """Whether the flag may be given several times; the value is then a list."""
    only_in_python: bool = False
    """Whether it has no flag: what others see in a list of processes must not be secret."""


@dataclass(frozen=True)
class DeclaredOption:
    """A parameter together with its `Option`."""

    name: str
    type: Any
    default: Any
    about: Option

    @property
    def flag(self) -> str:
        """The flag: `--max-tokens`, or `CHUNKS` for a positional argument."""
        if self.about.positional:
            return self.about.metavar or self.name.upper()
        return self.about.flag or "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value."""
        return self.type is bool

    @property
    def is_number(self) -> bool:
        """Whether only a whole number is a valid value."""
        union = get_origin(self.type) in (Union, types.UnionType)
        return set(get_args(self.type) if union else (self.type,)) - {types.NoneType} == {int}

    @property
    def help(self) -> str:
        """Description, valid values and default."""
        choices = f": {' | '.join(self.about.choices)}" if self.about.choices else ""
        default = self.about.default
        if default is None and not self.required and self.default:
            default = self.default if isinstance(self.default, str) else ",".join(self.default)
        return self.about.help + choices + (f" (default: {default})" if default else "")

    def read(self, value: Any) -> Any:
        """Validate a value and convert it, or raise `UsageError`. None means that it was not given."""
        if value is None and self.required:
            raise UsageError(f"{self.flag} is missing.")
        if value is None and not accepts(self.type, None):
            value = self.default
        if value is None:
            return None
        if not accepts(self.type, value):
            raise UsageError(f"{self.flag} {value!r}: not {in_words(self.type)}.")
        if self.about.read is not None:
            return self.about.read(value, option=self.flag)
        return one_of(value, self.about.choices, self.flag) if self.about.choices else value


@functools.cache
def declared_options(function: Callable[..., Any]) -> tuple[DeclaredOption, ...]:
    """The parameters of a function, each of which must be annotated with an `Option`."""
    options = []
    # not get_type_hints: Python 3.10 wraps a parameter whose default is None into Optional, without its notes
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        plain, *notes = get_args(parameter.annotation)
        (about,) = (note for note in notes if isinstance(note, Option))
        options.append(DeclaredOption(name, plain, parameter.default, about))
    return tuple(options)


def read_options(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Validate and convert a value for each parameter of `function`; keys are the names of the result's fields."""
    return {option.about.field or option.name: option.read(given[option.name]) for option in declared_options(function)}


def with_options_of(make: Callable[P, Made]) -> Callable[[Callable[[Made], Result]], Callable[P, Result]]:
    """Let a function that takes the result of `make` be called with the arguments of `make`.

    Type checkers and `help()` see the parameters of `make`. A misspelled keyword is a `UsageError` that suggests the
    nearest name.
    """

    def decorate(function: Callable[[Made], Result]) -> Callable[P, Result]:
        signature = _plain_signature(make, get_type_hints(function)["return"])
        name = function.__name__

        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> Result:
            given = options_by_name(options, make, name)
            signature.bind(*arguments, **given)  # a TypeError names this function's parameters
            return function(make(*arguments, **given))

        del call.__dict__["__wrapped__"]  # the wrapped function has another signature
        call.__dict__["__signature__"] = signature
        call.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        call.__annotations__["return"] = signature.return_annotation
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{option_list(make)}"
        return call

    return decorate


def options_by_name(options: Mapping[str, Any], make: Callable[..., Any], function: str) -> dict[str, Any]:
    """The options under the names of their parameters; that of the flag, where it is another, is good too."""
    names = {option.name: option.name for option in declared_options(make)}
    for option in declared_options(make):
        if not option.about.positional:
            names.setdefault(option.flag.lstrip("-").replace("-", "_"), option.name)
    given: dict[str, Any] = {}
    for word, value in options.items():
        if word not in names:
            raise UsageError(f"{function}() has no option {word!r}.{suggest(word, names)}")
        if names[word] in given:
            raise UsageError(f"{function}() was given {names[word]} twice, also as {word}. Drop one.")
        given[names[word]] = value
    return given


def _plain_signature(make: Callable[..., Any], returns: Any) -> inspect.Signature:
    signature = inspect.signature(make)
    plain = {option.name: option.type for option in declared_options(make)}
    parameters = [each.replace(annotation=plain[each.name]) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=returns)


def option_list(make: Callable[..., Any], names: Collection[str] | None = None) -> str:
    """What each option does, a line each, for a docstring; `names` are those to list."""
    chosen = [option for option in declared_options(make) if names is None or option.name in names]
    return "\n".join(f"  {option.name}: {option.help}" for option in chosen)
