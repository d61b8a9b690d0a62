"""`plan`: what a run will take, before it is made."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ultimate_embedder.cli.embed import OPTIONS as EMBED_OPTIONS
from ultimate_embedder.cli.parser import Commands, add_command, add_hidden_options, add_option_groups
from ultimate_embedder.cli.process import EXIT_FAILED, EXIT_OK
from ultimate_embedder.config import declared_options, read_option_file
from ultimate_embedder.errors import UsageError
from ultimate_embedder.estimate import PLAN, make_plan_options
from ultimate_embedder.options import BASICS, make_config
from ultimate_embedder.output import PLAN_NAME
from ultimate_embedder.terminal import show, write_line

SHOWN = ("chunks", "output", "models", "mode")
EXAMPLES = """\
plan chunks/
plan chunks/ --gpus t4x2 --models bge-m3,minilm --price-per-hour 0.35
plan chunks/ -o out/ --models bge-m3 --max-tokens 1024 --calibrate
plan --config run.toml --json"""
CODES = (
    "All options of embed apply too, and mean the same: 'ultimate-embedder embed --help' describes them. "
    "Exit codes: 0 it fits, 1 it does not or something is missing, 2 invalid usage."
)
QUIET_S = 10.0  # between two lines, where there is no terminal


def add_commands(commands: Commands) -> None:
    """Declare the command; its options are those of `embed`, and some of its own."""
    plan = add_command(
        commands,
        "plan",
        _plan,
        help="what a run will take: tokens, memory, disk, time, cost",
        usage="%(prog)s CHUNKS ... [-o DIR] [options]",
        description="Read and tokenise CHUNKS, and say what embedding them will take. Nothing is computed, weights of "
        f"models are not needed, and nothing is written but {PLAN_NAME}, if -o is given: the next embed with this "
        "output puts plan and actual side by side.",
        examples=EXAMPLES,
        epilog=CODES,
    )
    add_hidden_options(plan, make_config, SHOWN, BASICS)
    groups = add_option_groups(plan, make_plan_options, in_file=False)
    groups[PLAN].add_argument("--config", metavar="FILE", type=Path, help="read options of embed from this TOML file")
    groups[PLAN].add_argument("--json", action="store_true", help="print the plan as JSON instead of tables")


def _plan(options: argparse.Namespace) -> int:
    given = vars(options)
    words, file, as_json = given.pop("words"), given.pop("config"), given.pop("json")
    names = {option.name for option in declared_options(make_config)}
    from_file = read_option_file(file, EMBED_OPTIONS) if file else {}
    chosen = {name: value for name, value in {**from_file, **given}.items() if name in names}
    if "chunks" not in chosen:
        raise UsageError("plan needs CHUNKS: ultimate-embedder plan chunks/ --gpus t4x2 (or CHUNKS in --config).")
    own = make_plan_options(**{option.name: given[option.name] for option in declared_options(make_plan_options)})
    from ultimate_embedder.api import ask_for_plan, plan_and_store
    from ultimate_embedder.report import plan_lines

    asked = ask_for_plan(chosen.pop("chunks"), chosen.pop("output", None), chosen, own, words)
    report = _Counter(quiet=asked.run.quiet)
    made = plan_and_store(asked, quiet=asked.run.quiet, least_level=options.least_level, report=report)
    report.end()
    if as_json:
        write_line(json.dumps(made.model_dump(mode="json"), indent=2), sys.stdout)
    else:
        for line in plan_lines(made):
            show(line, sys.stdout)
    return EXIT_OK if made.fits else EXIT_FAILED


class _Counter:
    """Shows how far the plan is, on stderr: one line that changes, or a line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._stream: Any = None if quiet else sys.stderr
        self._live = bool(self._stream and self._stream.isatty())
        self._next = time.monotonic() + QUIET_S
        self._width = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell what is done."""
        line = f"{what}: {done:,} of {total:,} texts" if total else what
        if self._live:
            self._write(f"\r{line:{self._width}}")
            self._width = len(line)
        elif self._stream is not None and (not total or time.monotonic() >= self._next):
            self._next = time.monotonic() + QUIET_S
            show(line, self._stream)

    def end(self) -> None:
        """Remove the line."""
        if self._live and self._width:
            self._write(f"\r{'':{self._width}}\r")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
