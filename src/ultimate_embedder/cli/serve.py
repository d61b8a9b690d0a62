"""`serve`: the page and the API of an output."""

from __future__ import annotations

import argparse
import contextlib
import sys

from ultimate_embedder.cli.logs import capture_logs
from ultimate_embedder.cli.parser import Commands, add_command, add_option_groups
from ultimate_embedder.cli.process import EXIT_OK
from ultimate_embedder.config import declared_options
from ultimate_embedder.serve import make_serve_config, serve
from ultimate_embedder.terminal import show, write_line

EXAMPLES = """\
serve out/
serve out/ --open
serve out/ --host 0.0.0.0 --port 9000"""


def add_commands(commands: Commands) -> None:
    """Declare the command; its options are those of `make_serve_config`."""
    parser = add_command(
        commands,
        "serve",
        _serve,
        help="a local page about a run, with search, and an API for queries",
        description="Show a run in a browser while it goes on or after it has ended, search its collections, and "
        "encode queries as the collections were encoded, in the shape of OpenAI's API. Only this machine can reach it, "
        "unless --host says otherwise; then a token is needed.",
        examples=EXAMPLES,
    )
    add_option_groups(parser, make_serve_config, in_file=False)


def _serve(options: argparse.Namespace) -> int:
    given = vars(options)
    names = [option.name for option in declared_options(make_serve_config)]
    config = make_serve_config(**{name: given[name] for name in names if name in given})

    def report(address: str) -> None:
        write_line(address, sys.stdout)
        show("Ctrl-C stops the server.", sys.stderr)

    # what goes wrong while a request is answered is shown like all else: no text of a request steers the terminal
    shown = capture_logs("warning") if options.least_level is None else contextlib.nullcontext()
    with shown:
        serve(config, report)
    return EXIT_OK
