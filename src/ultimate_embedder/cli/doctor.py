"""`doctor`: what this machine can do, and what to change."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ultimate_embedder.cli.parser import Commands, add_command, add_options
from ultimate_embedder.cli.process import EXIT_FAILED, EXIT_OK
from ultimate_embedder.options import make_config
from ultimate_embedder.terminal import show, write_line


def add_commands(commands: Commands) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "doctor",
        _doctor,
        help="examine this machine: packages, devices, cache, disk",
        description="Examine this machine: Python and packages, what each device really computes (tried in a child "
        "process), the cache of models, the disk, and what it runs in. Each line has what was found and what to do.",
        examples="doctor\ndoctor -o /data/out --online\ndoctor --json > doctor.json",
        epilog="Exit codes: 0 there is no problem (there may be warnings), 1 there is one, 2 invalid usage.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="measure the disk of this folder: 32 MB are written and removed (default: the current folder)",
    )
    parser.add_argument("--online", action="store_true", help="also ask the hub whether it answers")
    parser.add_argument(
        "--json", action="store_true", help="print JSON, for bug reports: no user names, keys or tokens are in it"
    )
    add_options(parser, make_config, ["cache_dir"])


def _doctor(options: argparse.Namespace) -> int:
    try:
        from ultimate_embedder.report import doctor
    except ImportError as error:  # a package that the doctor itself needs
        show(f"error: {error}. Run: pip install --upgrade --force-reinstall ultimate-embedder", sys.stderr)
        return EXIT_FAILED

    def print_check(check: doctor.Check) -> None:
        if not options.json:
            for line in doctor.check_lines(check):
                write_line(line, sys.stdout)

    found = doctor.examine(options.output, online=options.online, cache_dir=options.cache_dir, report=print_check)
    write_line(found.as_json() if options.json else f"\n{doctor.totals(found)}", sys.stdout)
    return EXIT_FAILED if found.problems else EXIT_OK
