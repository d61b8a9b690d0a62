"""The command line: words in, words out. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import Sequence

from ultimate_embedder._version import __version__
from ultimate_embedder.cli import embed, inspect, models, upload
from ultimate_embedder.cli.parser import SuggestingParser
from ultimate_embedder.cli.process import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, discard_stdout
from ultimate_embedder.errors import UltimateEmbedderError, UsageError

__all__ = ["COMMANDS", "SuggestingParser", "build_parser", "main", "run"]

COMMANDS = (embed, upload, inspect, models)
"""The modules of the commands, in the order of `--help`. Each has `add_commands`."""


def run() -> int:
    """The installed command: `main`, and a quick end."""
    try:
        return main()
    finally:
        gc.freeze()  # else Python looks through half a million objects of torch for garbage, just before it ends


def build_parser() -> SuggestingParser:
    """The whole command line; `run` in what it parses is the function to call."""
    parser = SuggestingParser(
        prog="ultimate-embedder",
        description="Turn collections of pre-chunked documents into vectors and put them into Qdrant.",
    )
    parser.add_argument("--version", action="version", version=f"ultimate-embedder {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=SuggestingParser)
    for module in COMMANDS:
        module.add_commands(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    try:
        options = build_parser().parse_args(arguments)
        command = vars(options).pop("run")
        return int(command(options))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except UltimateEmbedderError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as with `head`
        discard_stdout()
        return EXIT_FAILED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        discard_stdout()
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
