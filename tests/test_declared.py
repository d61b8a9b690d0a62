"""Options are declared by annotations; the command line and Python signatures are made from them."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable
from typing import Annotated

import pytest

from ultimate_embedder.cli import SuggestingParser
from ultimate_embedder.cli.parser import add_option_groups, add_options
from ultimate_embedder.config import Option, declared_options, read_options, with_options_of
from ultimate_embedder.errors import UsageError


def _doubled(value: int, option: str) -> int:
    if value < 0:
        raise UsageError(f"{option} {value}: negative")
    return 2 * value


def make(
    place: Annotated[str, Option("where", "basics", "PLACE", positional=True)],
    color: Annotated[str, Option("which color", "looks", "COLOR", choices=("red", "green"))] = "red",
    *,
    size: Annotated[
        int | None, Option("how large", "looks", "N", read=_doubled, default="medium", field="size_cm")
    ] = None,
    sorts: Annotated[str | Iterable[str], Option("100% of which", "basics", "KIND,...", flag="--sort")] = ("a", "b"),
    loud: Annotated[bool, Option("with noise", "basics")] = False,
) -> dict[str, object]:
    """A dictionary of what was given."""
    return read_options(make, locals())


@with_options_of(make)
def show(made: dict[str, object]) -> str:
    """Show it."""
    return str(made)


@pytest.fixture
def parser() -> SuggestingParser:
    parser = SuggestingParser(prog="x")
    add_option_groups(parser, make)
    return parser


def test_flags_are_the_names_of_parameters_unless_one_is_given() -> None:
    assert [option.flag for option in declared_options(make)] == ["PLACE", "--color", "--size", "--sort", "--loud"]


def test_the_command_line_gives_what_the_function_takes(parser: SuggestingParser) -> None:
    words = ["here", "--color", "green", "--size", "3", "--sort", "c", "--loud"]
    assert vars(parser.parse_args(words)) == {"place": "here", "color": "green", "size": 3, "sorts": "c", "loud": True}
    assert make(**vars(parser.parse_args(["here"]))) == make("here")


def test_help_has_a_group_for_each_title_and_says_the_defaults(parser: SuggestingParser) -> None:
    text = parser.format_help().partition("options:")[2]
    assert text.index("basics:") < text.index("--sort") < text.index("--loud") < text.index("looks:")
    assert "which color: red | green (default: red)" in text
    assert "how large (default: medium)" in text
    assert "100% of which (default: a,b)" in text


def test_a_command_may_take_some_of_the_options() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, make, ["loud"])
    assert vars(parser.parse_args(["--loud"])) == {"loud": True}


def test_values_are_read_and_named_as_the_fields_are() -> None:
    assert make("here", size=2)["size_cm"] == 4
    with pytest.raises(UsageError, match=r"--size -1: negative"):
        make("here", size=-1)
    with pytest.raises(UsageError, match=r"--color gren: not one of red, green\. Did you mean green\?"):
        make("here", "gren")


def test_a_function_shows_the_options_with_plain_types() -> None:
    signature = inspect.signature(show)
    assert str(signature) == (
        "(place: str, color: str = 'red', *, size: int | None = None, "
        "sorts: str | collections.abc.Iterable[str] = ('a', 'b'), loud: bool = False) -> str"
    )
    assert (show.__name__, inspect.getdoc(show)) == ("show", show.__doc__)
    assert show.__doc__ is not None
    assert show.__doc__.startswith("Show it.\n\nOptions:\n  place: where\n")


def test_a_misspelled_keyword_is_wrong_usage() -> None:
    with pytest.raises(UsageError) as caught:
        show("here", colour="red")  # type: ignore[call-arg]
    assert str(caught.value) == "show() has no option 'colour'. Did you mean color?"


def test_a_missing_argument_is_a_type_error_as_with_any_function() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'place'"):
        show()  # type: ignore[call-arg]
