"""The command line: words in, words out. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from ultimate_embedder._version import __version__
from ultimate_embedder.config import (
    DEFAULT_MODEL,
    EXPORT_KINDS,
    MODES,
    PRECISIONS,
    hub_access,
    make_config,
    suggest,
)
from ultimate_embedder.devices import DEVICE_WORDS
from ultimate_embedder.errors import UltimateEmbedderError, UsageError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    try:
        options = _parser().parse_args(arguments)
        return int(options.command(options))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except UltimateEmbedderError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _embed(options: argparse.Namespace) -> int:
    config = make_config(
        options.chunks,
        options.output,
        collections=options.collections,
        models=options.models,
        mode=options.mode,
        devices=options.devices,
        max_tokens=options.max_tokens,
        dim=options.dim,
        precision=options.precision,
        gpu0_ceiling=options.gpu0_ceiling,
        safety_margin=options.safety_margin,
        gradient_checkpointing=options.gradient_checkpointing,
        cache_dir=options.cache_dir,
        offline=options.offline,
        refresh_cache=options.refresh_cache,
        trust_remote_code=options.trust_remote_code,
        allow_missing_companions=options.allow_missing_companions,
        exports=options.export,
        summary=options.summary,
        dry_run=options.dry_run,
        deadline=options.deadline,
        fresh=options.fresh,
        resume_from=options.resume_from,
    )
    from ultimate_embedder.api import run_and_report
    from ultimate_embedder.report import print_summary

    summary = run_and_report(config, quiet=options.quiet)
    if options.json:
        print(summary.model_dump_json(indent=2))
    else:
        print_summary(summary, None if config.dry_run else config.summary_path, sys.stdout)
    if any(collection.status == "partial" for collection in summary.collections):
        return EXIT_PARTIAL
    return EXIT_OK if summary.ok else EXIT_FAILED


def _upload(options: argparse.Namespace) -> int:
    api_key = None
    if options.api_key_env:
        api_key = os.environ.get(options.api_key_env)
        if not api_key:
            raise UsageError(f"--api-key-env {options.api_key_env}: that variable is not set.")
    if not options.folder.is_dir():
        raise UsageError(f"{options.folder} is not a folder. Give the --output of an earlier embed.")
    if not options.url.strip():
        raise UsageError("--url is empty. Write http://localhost:6333, for example.")
    from ultimate_embedder.export import upload
    from ultimate_embedder.report import make_progress

    with make_progress(options.quiet) as progress:
        reports = upload(options.folder, options.url, progress, options.collection, api_key)
    for report in reports:
        print(f"{report.collection}: {report.counted} of {report.points} points in {report.target}")
    return EXIT_OK


def _status(options: argparse.Namespace) -> int:
    from ultimate_embedder.upkeep import output_status

    print(f"{'collection':24}{'model':28}{'dtype':10}{'vectors':>9}{'missing':>9}{'shards':>8}{'MB':>9}  next")
    for each in output_status(options.folder):
        counts = f"{each.rows:>9}{each.missing:>9}{each.shards:>8}{each.size_bytes / 1e6:>9.1f}"
        print(f"{each.collection:24}{each.model:28}{each.dtype:10}{counts}  {each.next}")
    return EXIT_OK


def _verify(options: argparse.Namespace) -> int:
    from ultimate_embedder.upkeep import verify_output

    if options.sample < 0:
        raise UsageError(f"--sample {options.sample}: must be at least 0.")
    access = hub_access(cache_dir=options.cache_dir, offline=True, trusted=options.trust_remote_code)
    found = verify_output(options.folder, options.sample, access)
    for words in (*found.damaged, *found.unchecked):
        print(words)
    print(f"looked at {found.shards} shards, {found.exports} exports and {found.vectors} vectors, computed again")
    if found.damaged:
        print("Run the same embed command again: what is damaged is computed and written anew.", file=sys.stderr)
    elif not found.unchecked:
        print("whole and undamaged")
    return EXIT_FAILED if found.damaged or found.unchecked else EXIT_OK


def _models_list(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import MODELS, whereabouts

    access = hub_access(cache_dir=options.cache_dir)
    print(f"{'key':28}{'kind':10}{'dims':>6}{'tokens':>8}  {'remote code':13}{'here':24}{'size':>9}  note")
    for spec in MODELS:
        code = "needed" if spec.remote_code else "no"
        found = whereabouts(spec, access)
        size = f"{found.size_bytes / 1e6:,.0f} MB" if found.size_bytes else "-"
        dims = f"{spec.dim or '-':>6}{spec.max_tokens:>8}"
        print(f"{spec.key:28}{spec.kind:10}{dims}  {code:13}{found.words:24}{size:>9}  {spec.note}")
    return EXIT_OK


def _models_pull(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import pull_model
    from ultimate_embedder.report import make_progress

    access = hub_access(cache_dir=options.cache_dir, refresh=options.refresh_cache, trusted=options.trust_remote_code)
    with make_progress(options.quiet) as progress:
        for key in options.keys:
            model = pull_model(key, access, progress)
            print(f"{model.name}: {model.revision} in {model.path} ({model.note or model.source})")
    return EXIT_OK


def _models_verify(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import MODELS, cached_snapshot, find_spec, unknown_model, verify_snapshot

    access = hub_access(cache_dir=options.cache_dir)
    damaged = 0
    for key in options.keys or [spec.key for spec in MODELS]:
        spec = find_spec(key)
        if spec is None:
            raise unknown_model(key)
        snapshot = cached_snapshot(spec, access)
        if snapshot is None:
            damaged += bool(options.keys)
            if options.keys:
                print(f"{spec.key}: not in the cache")
            continue
        problems = list(dict.fromkeys(verify_snapshot(snapshot)))
        damaged += bool(problems)
        print(f"{spec.key}: {'; '.join(problems) if problems else 'whole and undamaged'} ({snapshot.path})")
    return EXIT_FAILED if damaged else EXIT_OK


def _models_manifest(options: argparse.Namespace) -> int:
    import json

    from ultimate_embedder.models import output_manifest

    print(json.dumps(output_manifest(options.output, hub_access(cache_dir=options.cache_dir)), indent=2))
    return EXIT_OK


def _models_show(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import find_spec, unknown_model

    spec = find_spec(options.key)
    if spec is None:
        raise unknown_model(options.key)
    dims = ", ".join(map(str, spec.matryoshka_dims)) or "none"
    rows = {
        "key": spec.key,
        "hub id": spec.hub_id,
        "kind": spec.kind,
        "dims": spec.dim or "-",
        "can be cut to": dims,
        "token limit": spec.max_tokens,
        "document prompt": repr(spec.document_prompt.text) if spec.document_prompt else "none",
        "query prompt": repr(spec.query_prompt.text) if spec.query_prompt else "none",
        "remote code": "needed" if spec.remote_code else "no",
        "revision": spec.revision or "not pinned",
        "also called": ", ".join(spec.aliases) or "-",
        "note": spec.note,
    }
    for name, value in rows.items():
        print(f"{name:16} {value}")
    return EXIT_OK


class _Parser(argparse.ArgumentParser):
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
        self.exit(EXIT_USAGE, f"error: {message}.{hints}\n'{self.prog} --help' lists the options.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ultimate-embedder",
        description="Turn collections of pre-chunked documents into vectors and put them into Qdrant.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ultimate-embedder {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    _add_embed(commands)
    _add_upload(commands)
    _add_upkeep(commands)
    _add_models(commands)
    return parser


def _add_embed(commands: argparse._SubParsersAction[_Parser]) -> None:
    embed = commands.add_parser(
        "embed",
        help="make vectors and exports from chunk files",
        description="Embed every collection below CHUNKS. Run the same command again to go on after an "
        "interruption, or after adding chunks: vectors that are stored are not computed again.",
        epilog="Exit codes: 0 all done, 1 a collection failed or nothing was found, 2 wrong usage, 3 stopped before "
        "the end by a deadline or a signal.",
        allow_abbrev=False,
    )
    embed.set_defaults(command=_embed)
    embed.add_argument("chunks", metavar="CHUNKS", help="folder of chunk files; each sub-folder is a collection")
    embed.add_argument("--output", required=True, metavar="DIR", help="where vectors, exports and summary go")
    embed.add_argument("--collections", metavar="NAME,...", help="only these (default: all)")
    embed.add_argument(
        "--models",
        default=DEFAULT_MODEL,
        metavar="KEY_OR_PATH[=WEIGHT],...",
        help="a name from 'models list' or the folder of a model (default: %(default)s)",
    )
    embed.add_argument("--mode", default="auto", metavar="MODE", help=f"{' | '.join(MODES)} (default: auto)")
    embed.add_argument("--devices", metavar="DEVICES", help=f"{' | '.join(DEVICE_WORDS)} (default: auto)")
    embed.add_argument(
        "--gpu0-ceiling", default="12GB", metavar="SIZE", help="most that the first GPU may hold (default: %(default)s)"
    )
    embed.add_argument("--safety-margin", default="8%", metavar="SHARE", help="of each GPU, left free (default: 8%%)")
    embed.add_argument(
        "--gradient-checkpointing", action="store_true", help="accepted; without training it saves nothing"
    )
    embed.add_argument("--max-tokens", type=int, metavar="N", help="cut texts here (default: the model's limit)")
    embed.add_argument("--dim", type=int, metavar="N", help="shorter vectors, from models trained for it")
    embed.add_argument("--precision", default="auto", metavar="P", help=f"{' | '.join(PRECISIONS)}")
    embed.add_argument(
        "--export",
        default=",".join(EXPORT_KINDS),
        metavar="KIND,...",
        help="which files to write, or none (default: %(default)s)",
    )
    embed.add_argument("--cache-dir", metavar="DIR", help="the Hugging Face cache (default: the standard one)")
    embed.add_argument("--offline", action="store_true", help="never use the network")
    embed.add_argument("--refresh-cache", action="store_true", help="ask the hub whether models have changed")
    embed.add_argument("--trust-remote-code", default="", metavar="KEY,...", help="models whose own code may run")
    embed.add_argument("--allow-missing-companions", action="store_true", help="go on without models that are missing")
    embed.add_argument("--summary", metavar="PATH", help="where the summary goes (default: DIR/summary.json)")
    embed.add_argument("--deadline", metavar="WHEN", help="stop in time and keep what is done: 11h30m, or 18:30")
    embed.add_argument("--fresh", action="store_true", help="compute everything anew")
    embed.add_argument("--resume-from", metavar="DIR", help="an earlier output, read-only, to go on from")
    embed.add_argument("--dry-run", action="store_true", help="read and check everything, write nothing")
    embed.add_argument("--quiet", action="store_true", help="no progress")
    embed.add_argument("--json", action="store_true", help="print the summary as JSON instead of a table")


def _add_upload(commands: argparse._SubParsersAction[_Parser]) -> None:
    upload = commands.add_parser(
        "upload",
        help="send finished collections to a Qdrant server",
        description="Upload what embed wrote. Can be interrupted and repeated: points are never doubled.",
        allow_abbrev=False,
    )
    upload.set_defaults(command=_upload)
    upload.add_argument("folder", metavar="DIR", type=Path, help="the --output of embed, or one collection in it")
    upload.add_argument("--url", required=True, metavar="URL", help="for example http://localhost:6333")
    upload.add_argument("--collection", metavar="NAME", help="name in Qdrant (default: from collection and model)")
    upload.add_argument("--api-key-env", metavar="VAR", help="environment variable that holds the API key")
    upload.add_argument("--quiet", action="store_true", help="no progress")


def _add_upkeep(commands: argparse._SubParsersAction[_Parser]) -> None:
    status = commands.add_parser("status", help="what is in an output, and what is left to do", allow_abbrev=False)
    status.set_defaults(command=_status)
    verify = commands.add_parser(
        "verify",
        help="check an output: every checksum, and some vectors computed again",
        allow_abbrev=False,
    )
    verify.set_defaults(command=_verify)
    verify.add_argument("--sample", type=int, default=20, metavar="N", help="vectors to compute again (default: 20)")
    verify.add_argument("--cache-dir", metavar="DIR", help="the Hugging Face cache (default: the standard one)")
    verify.add_argument("--trust-remote-code", default="", metavar="KEY,...", help="models whose own code may run")
    for each in (status, verify):
        each.add_argument("folder", metavar="DIR", type=Path, help="the --output of embed")


def _add_models(commands: argparse._SubParsersAction[_Parser]) -> None:
    models = commands.add_parser("models", help="which models there are", allow_abbrev=False)
    actions = models.add_subparsers(metavar="ACTION", required=True, parser_class=_Parser)
    listing = actions.add_parser("list", help="the known models, and which are here", allow_abbrev=False)
    listing.set_defaults(command=_models_list)
    pull = actions.add_parser("pull", help="fetch models into the cache", allow_abbrev=False)
    pull.set_defaults(command=_models_pull)
    pull.add_argument("keys", metavar="KEY", nargs="+")
    pull.add_argument("--refresh-cache", action="store_true", help="ask the hub for a newer commit")
    pull.add_argument("--trust-remote-code", default="", metavar="KEY,...", help="models whose own code may run")
    pull.add_argument("--quiet", action="store_true", help="no progress")
    verify = actions.add_parser("verify", help="read every byte of cached models", allow_abbrev=False)
    verify.set_defaults(command=_models_verify)
    verify.add_argument("keys", metavar="KEY", nargs="*", help="default: all that are cached")
    manifest = actions.add_parser("manifest", help="what an output needs, as JSON", allow_abbrev=False)
    manifest.set_defaults(command=_models_manifest)
    manifest.add_argument("output", metavar="OUT", type=Path)
    for each in (listing, pull, verify, manifest):
        each.add_argument("--cache-dir", metavar="DIR", help="the Hugging Face cache (default: the standard one)")
    show = actions.add_parser("show", help="everything about one model", allow_abbrev=False)
    show.set_defaults(command=_models_show)
    show.add_argument("key", metavar="KEY")
