"""The command line. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence

from ultimate_embedder._version import __version__
from ultimate_embedder.cli import (
    compare,
    doctor,
    embed,
    evaluate,
    inspect,
    models,
    plan,
    report,
    search,
    serve,
    upload,
    watch,
)
from ultimate_embedder.cli.completion import complete
from ultimate_embedder.cli.parser import SuggestingParser
from ultimate_embedder.cli.process import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    close_streams,
    open_streams,
    own_process,
)
from ultimate_embedder.errors import UltimateEmbedderError, UsageError, traceback_of
from ultimate_embedder.stop import has_abandoned_threads
from ultimate_embedder.terminal import discard, show

__all__ = ["COMMANDS", "SuggestingParser", "build_parser", "main", "run"]

COMMANDS = (plan, embed, watch, search, evaluate, serve, upload, inspect, report, compare, models, doctor)
"""The modules of the commands, in the order of `--help`. Each has `add_commands`."""


EPILOG = """\
examples:
  ultimate-embedder plan chunks/ --gpus t4x2
  ultimate-embedder embed chunks/ -o out/
  ultimate-embedder search out/ "how do I resume a run?"
  ultimate-embedder upload out/ --url http://localhost:6333
  ultimate-embedder models list

'ultimate-embedder COMMAND --help' shows the options and examples of a command."""


# Objects between two searches for garbage, and of the older ones. Imports make half a million that stay, and by default
# they are looked through every 700: 0.08 of the 2.1 s that a run of two texts takes. More than this saves nothing.
COLLECTIONS = (10_000, 10, 10)


def run() -> int:
    """The installed command: `main`, with a traceback that is safe to print, and a quick exit."""
    own_process()
    gc.set_threshold(*COLLECTIONS)
    try:
        code = main()
    except Exception as error:  # noqa: BLE001 - what Python would do, but with the text escaped
        show(traceback_of(error), sys.stderr)
        code = EXIT_FAILED
    finally:
        gc.freeze()  # else Python collects garbage among half a million objects of torch at exit
    if has_abandoned_threads():  # a driver that hangs would keep the process from ending
        os._exit(code)
    return code


def build_parser() -> SuggestingParser:
    """The argument parser; `run` in the parsed options is the function to call."""
    parser = SuggestingParser(
        prog="ultimate-embedder",
        description="Turn collections of pre-chunked documents into vectors and put them into Qdrant.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ultimate-embedder {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, prog=parser.prog, parser_class=SuggestingParser
    )
    for module in COMMANDS:
        module.add_commands(commands)
    helping = commands.add_parser("help", help="show the help of a command")
    helping.add_argument("words", metavar="COMMAND", nargs="*", help="such as embed, or models pull")
    helping.set_defaults(run=lambda options: parser.parse_args([*options.words, "--help"]))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    open_streams()
    try:
        try:
            return _run(arguments)
        finally:
            close_streams()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        if sys.stdout is not None:
            discard(sys.stdout)
        show(f"error: the output cannot be written: {error.strerror}", sys.stderr)
        return EXIT_FAILED


def _run(arguments: Sequence[str] | None) -> int:
    try:
        parser = build_parser()
        complete(parser)
        words = list(sys.argv[1:] if arguments is None else arguments)
        options = parser.parse_args(words)
        options.words = vars(options).get("words", words)
        command = vars(options).pop("run")
        return int(command(options))
    except UsageError as error:
        show(f"error: {error}", sys.stderr)
        return EXIT_USAGE
    except UltimateEmbedderError as error:
        show(f"error: {error}", sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        show("interrupted; run the same command again to resume", sys.stderr)
        return EXIT_INTERRUPTED
