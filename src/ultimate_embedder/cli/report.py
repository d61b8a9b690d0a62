"""`report`: the page about a run, made anew."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ultimate_embedder.cli.parser import Commands, add_command
from ultimate_embedder.cli.process import EXIT_OK
from ultimate_embedder.errors import OutputError, UsageError
from ultimate_embedder.output import EVENTS_NAME, REPORT_NAME, SUMMARY_NAME, Output
from ultimate_embedder.terminal import show


def add_commands(commands: Commands) -> None:
    """Declare the command."""
    report = add_command(
        commands,
        "report",
        _report,
        help=f"write {REPORT_NAME}, the page about the last run of an output",
        description=f"Write {REPORT_NAME} into an output, from its {SUMMARY_NAME} and {EVENTS_NAME} alone: also in a "
        "copied folder, and for a run that was killed.",
        examples="report out/",
    )
    report.add_argument("folder", metavar="DIR", type=Path, help="the --output of embed")
    report.add_argument(
        "--short-paths",
        action="store_true",
        help="leave out the folders of this machine: of a path only its name is shown",
    )


def _report(options: argparse.Namespace) -> int:
    from ultimate_embedder.report import write_report

    if not options.folder.is_dir():
        raise UsageError(f"{options.folder} is not a folder. Give the --output of an earlier embed.")
    try:
        path = write_report(Output(options.folder), short_paths=options.short_paths)
    except OSError as error:
        raise OutputError(f"{options.folder}: {REPORT_NAME} cannot be written: {error.strerror}.") from error
    show(str(path), sys.stdout)
    return EXIT_OK
