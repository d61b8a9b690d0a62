"""The words of the command line: commands, options, and what they are for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from ultimate_embedder._version import __version__
from ultimate_embedder.config import (
    BACKENDS,
    DEFAULT_EXPORTS,
    DEFAULT_MODEL,
    EXPORT_KINDS,
    FUSIONS,
    MODES,
    PARALLELISMS,
    PRECISIONS,
    suggest,
)
from ultimate_embedder.devices import DEVICE_WORDS
from ultimate_embedder.output import POINTS_FILE, SUMMARY_NAME

USAGE_EXIT_CODE = 2


class WordyParser(argparse.ArgumentParser):
    """argparse that says what a misspelled option may have meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown words where they stand: the parser of the command knows its options, the top one does not."""
        self._given = list(args if args is not None else sys.argv[1:])
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and not self._subparsers:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Name the mistake, and for each unknown option the one it resembles."""
        known = [option for action in self._actions for option in action.option_strings]
        given = [word.partition("=")[0] for word in getattr(self, "_given", []) if word.startswith("--")]
        hints = "".join(suggest(word, known) for word in given if word not in known)
        self.exit(USAGE_EXIT_CODE, f"error: {message}.{hints}\n'{self.prog} --help' lists the options.\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; `command` in what it parses names what to do."""
    parser = WordyParser(
        prog="ultimate-embedder",
        description="Turn collections of pre-chunked documents into vectors and put them into Qdrant.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ultimate-embedder {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=WordyParser)
    _add_embed(commands)
    _add_upload(commands)
    _add_upkeep(commands)
    _add_models(commands)
    return parser


def _add_embed(commands: argparse._SubParsersAction[WordyParser]) -> None:
    embed = commands.add_parser(
        "embed",
        help="make vectors and exports from chunk files",
        description="Embed every collection below CHUNKS. Run the same command again to go on after an "
        "interruption, or after adding chunks: vectors that are stored are not computed again.",
        epilog="Exit codes: 0 all done, 1 a collection failed or nothing was found, 2 wrong usage, 3 stopped before "
        "the end by a deadline or a signal.",
        allow_abbrev=False,
    )
    embed.set_defaults(command="embed")
    embed.add_argument("chunks", metavar="CHUNKS", help="folder of chunk files; each sub-folder is a collection")
    embed.add_argument("--output", required=True, metavar="DIR", help="where vectors, exports and summary go")
    embed.add_argument("--collections", metavar="NAME,...", help="only these (default: all)")
    embed.add_argument(
        "--models",
        default=DEFAULT_MODEL,
        metavar="KEY_OR_PATH[=WEIGHT],...",
        help="names from 'models list' or folders of models, the primary first (default: %(default)s)",
    )
    embed.add_argument("--mode", default="auto", metavar="MODE", help=f"{' | '.join(MODES)} (default: auto)")
    embed.add_argument(
        "--fusion", default="named", metavar="HOW", help=f"of several models: {' | '.join(FUSIONS)} (default: named)"
    )
    embed.add_argument("--devices", metavar="DEVICES", help=f"{' | '.join(DEVICE_WORDS)} (default: auto)")
    embed.add_argument("--device-order", default=(), metavar="N,...", help="use only these of them, in this order")
    embed.add_argument(
        "--parallelism",
        default="replicas",
        metavar="HOW",
        help=f"one model on several GPUs: {' | '.join(PARALLELISMS)} (default: replicas)",
    )
    embed.add_argument("--keep-primary", action="store_true", help="the first model stays on the GPUs where it can")
    embed.add_argument("--warm-cache", action="store_true", help="every model stays on the GPUs where it can")
    embed.add_argument("--no-ensemble", default=(), metavar="NAME,...", help="collections for the first model only")
    embed.add_argument("--force-cpu", default=(), metavar="NAME,...", help="collections that use no GPU")
    embed.add_argument(
        "--gpu0-ceiling", default="12GB", metavar="SIZE", help="most that the first GPU may hold (default: %(default)s)"
    )
    embed.add_argument("--safety-margin", default="8%", metavar="SHARE", help="of each GPU, left free (default: 8%%)")
    embed.add_argument(
        "--gradient-checkpointing", action="store_true", help="accepted; without training it saves nothing"
    )
    embed.add_argument("--max-tokens", type=int, metavar="N", help="cut texts here (default: the model's limit)")
    embed.add_argument("--token-cap", type=int, metavar="N", help="a lower limit for models that could take more")
    embed.add_argument("--dim", type=int, metavar="N", help="shorter vectors, from models trained for it")
    embed.add_argument("--precision", default="auto", metavar="P", help=f"{' | '.join(PRECISIONS)}")
    embed.add_argument("--backend", metavar="NAME", help=f"on the CPU: {' | '.join(BACKENDS)} (default: torch)")
    embed.add_argument(
        "--export",
        default=",".join(DEFAULT_EXPORTS),
        metavar="KIND,...",
        help=f"which files to write, of {', '.join(EXPORT_KINDS)}, or none (default: %(default)s)",
    )
    embed.add_argument("--cache-dir", metavar="DIR", help="the Hugging Face cache (default: the standard one)")
    embed.add_argument("--offline", action="store_true", help="never use the network")
    embed.add_argument("--refresh-cache", action="store_true", help="ask the hub whether models have changed")
    embed.add_argument("--trust-remote-code", default="", metavar="KEY,...", help="models whose own code may run")
    embed.add_argument("--allow-missing-companions", action="store_true", help="go on without models that are missing")
    embed.add_argument(
        "--summary", metavar="PATH", help=f"also write the summary there (it is always in DIR/{SUMMARY_NAME})"
    )
    embed.add_argument("--skip-existing", action="store_true", help="leave collections alone that have their exports")
    embed.add_argument("--deadline", metavar="WHEN", help="stop in time and keep what is done: 11h30m, or 18:30")
    embed.add_argument("--fresh", action="store_true", help="compute everything anew")
    embed.add_argument("--resume-from", metavar="DIR", help="an earlier output, read-only, to go on from")
    embed.add_argument("--dry-run", action="store_true", help="read and check everything, write nothing")
    embed.add_argument("--quiet", action="store_true", help="no progress")
    embed.add_argument("--json", action="store_true", help="print the summary as JSON instead of a table")


def _add_upload(commands: argparse._SubParsersAction[WordyParser]) -> None:
    upload = commands.add_parser(
        "upload",
        help="send finished collections to a Qdrant server",
        description="Upload what embed wrote. Can be interrupted and repeated: points are never doubled.",
        allow_abbrev=False,
    )
    upload.set_defaults(command="upload")
    upload.add_argument("folder", metavar="DIR", type=Path, help="the --output of embed, or one collection in it")
    upload.add_argument("--url", required=True, metavar="URL", help="for example http://localhost:6333")
    upload.add_argument("--collection", metavar="NAME", help="name in Qdrant (default: from collection and model)")
    upload.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    upload.add_argument("--quiet", action="store_true", help="no progress")


def _add_upkeep(commands: argparse._SubParsersAction[WordyParser]) -> None:
    status = commands.add_parser("status", help="what is in an output, and what is left to do", allow_abbrev=False)
    status.set_defaults(command="status")
    verify = commands.add_parser(
        "verify",
        help="check an output: every checksum, and some vectors computed again",
        description="Recompute every checksum of an output, and the vectors of some texts, in the store and in "
        f"{POINTS_FILE}. Texts are taken from the exports, or from the chunk files if they are still there.",
        epilog="Exit codes: 0 all was checked and is good, 1 something is damaged or does not match, 2 wrong usage, "
        "4 nothing is damaged, but not everything could be checked.",
        allow_abbrev=False,
    )
    verify.set_defaults(command="verify")
    verify.add_argument(
        "--sample",
        type=int,
        default=20,
        metavar="N",
        help="texts of each collection whose vectors are computed again, 0 for none (default: 20)",
    )
    verify.add_argument("--cache-dir", metavar="DIR", help="the Hugging Face cache (default: the standard one)")
    verify.add_argument("--trust-remote-code", default="", metavar="KEY,...", help="models whose own code may run")
    for each in (status, verify):
        each.add_argument("folder", metavar="DIR", type=Path, help="the --output of embed")


def _add_models(commands: argparse._SubParsersAction[WordyParser]) -> None:
    models = commands.add_parser("models", help="which models there are", allow_abbrev=False)
    actions = models.add_subparsers(metavar="ACTION", required=True, parser_class=WordyParser)
    listing = actions.add_parser("list", help="the known models, and which are here", allow_abbrev=False)
    listing.set_defaults(command="models_list")
    pull = actions.add_parser("pull", help="fetch models into the cache", allow_abbrev=False)
    pull.set_defaults(command="models_pull")
    pull.add_argument("keys", metavar="KEY", nargs="+")
    pull.add_argument("--refresh-cache", action="store_true", help="ask the hub for a newer commit")
    pull.add_argument("--trust-remote-code", default="", metavar="KEY,...", help="models whose own code may run")
    pull.add_argument("--quiet", action="store_true", help="no progress")
    verify = actions.add_parser("verify", help="read every byte of models, and compare checksums", allow_abbrev=False)
    verify.set_defaults(command="models_verify")
    verify.add_argument(
        "keys", metavar="KEY_OR_PATH", nargs="*", help="names, hub ids or folders (default: all known that are here)"
    )
    manifest = actions.add_parser("manifest", help="what an output needs, as JSON", allow_abbrev=False)
    manifest.set_defaults(command="models_manifest")
    manifest.add_argument("output", metavar="OUT", type=Path)
    show = actions.add_parser("show", help="everything about one model", allow_abbrev=False)
    show.set_defaults(command="models_show")
    show.add_argument("key", metavar="KEY_OR_PATH", help="a name from 'models list', a hub id or a folder")
    for each in (listing, pull, verify, manifest, show):
        each.add_argument("--cache-dir", metavar="DIR", help="the Hugging Face cache (default: the standard one)")
