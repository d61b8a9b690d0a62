"""The checks as lines of a table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ultimate_embedder.report.doctor.check import Check, Examination
from ultimate_embedder.terminal import counted, printable

WIDTH = 80
STATE_WIDTH, NAME_WIDTH = 9, 23
ARROW = "-> "


def totals(examination: Examination) -> str:
    """How many checks are in which state."""
    problems, warnings = len(examination.problems), len(examination.warnings)
    good = len(examination.checks) - problems - warnings
    return f"{good} ok, {counted(warnings, 'warning')}, {counted(problems, 'problem')}"


def check_lines(check: Check) -> Iterator[str]:
    """The lines of a check, at most 80 columns wide."""
    start = f"{check.state:{STATE_WIDTH}}{printable(check.name):{NAME_WIDTH}}"
    blank = " " * len(start)
    lines = [*(_wrapped(check.found, "") or [""]), *_wrapped(check.remedy, ARROW)]
    yield from ((blank if number else start) + line for number, line in enumerate(lines))


def _wrapped(text: str, mark: str) -> list[str]:
    width = WIDTH - STATE_WIDTH - NAME_WIDTH
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_on_hyphens=False,  # else a line of --options could end in the middle of one
    )
