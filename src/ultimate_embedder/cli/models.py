"""`models`: list, pull, verify, manifest, show."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ultimate_embedder.cli.completion import complete_with, model_names
from ultimate_embedder.cli.parser import Commands, SuggestingParser, add_command, add_options
from ultimate_embedder.cli.process import EXIT_FAILED, EXIT_OK
from ultimate_embedder.config import hub_access
from ultimate_embedder.options import make_config
from ultimate_embedder.terminal import show, write_line

EPILOG = """\
examples:
  ultimate-embedder models list
  ultimate-embedder models pull bge-m3"""


def add_commands(commands: Commands) -> None:
    """Declare the commands."""
    help = "list, download and check models"
    models = commands.add_parser("models", help=help, epilog=EPILOG)
    actions = models.add_subparsers(
        title="actions", metavar="ACTION", required=True, prog=models.prog, parser_class=SuggestingParser
    )
    listing = add_command(
        actions,
        "list",
        _models_list,
        help="list the known models and which are on this machine",
        examples="models list",
    )
    pull = add_command(
        actions,
        "pull",
        _models_pull,
        help="download models into the cache",
        examples="models pull bge-m3\nmodels pull intfloat/e5-small-v2 --cache-dir hub/",
    )
    pulled = pull.add_argument("keys", metavar="KEY", nargs="+", help="names from 'models list', or hub ids")
    add_options(pull, make_config, ["refresh_cache", "trust_remote_code", "quiet"])
    verify = add_command(
        actions,
        "verify",
        _models_verify,
        help="compare the files of models with their checksums",
        examples="models verify\nmodels verify bge-m3",
    )
    verified = verify.add_argument(
        "keys",
        metavar="KEY_OR_PATH",
        nargs="*",
        help="names, hub ids or folders (default: all known models on this machine)",
    )
    manifest = add_command(
        actions,
        "manifest",
        _models_manifest,
        help="print the models that an output needs, as JSON",
        examples="models manifest out/",
    )
    manifest.add_argument("output", metavar="OUT", type=Path)
    show = add_command(
        actions,
        "show",
        _models_show,
        help="show the metadata of one model",
        examples="models show bge-m3\nmodels show ./my-model",
    )
    shown = show.add_argument("key", metavar="KEY_OR_PATH", help="a name from 'models list', a hub id or a folder")
    for argument in (pulled, verified, shown):
        complete_with(argument, model_names)
    for each in (listing, pull, verify, manifest, show):
        add_options(each, make_config, ["cache_dir"])


def _models_list(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import MODELS, locate_model

    access = hub_access(cache_dir=options.cache_dir)
    heading = f"{'key':30}{'kind':10}{'dims':>6}{'tokens':>8}  {'remote code':13}{'location':24}{'size':>9}  note"
    show(heading, sys.stdout)
    for spec in MODELS:
        code = "needed" if spec.remote_code else "no"
        found = locate_model(spec, access)
        size = f"{found.size_bytes / 1e6:,.0f} MB" if found.size_bytes else "-"
        dims = f"{spec.dim or '-':>6}{spec.max_tokens:>8}"
        line = f"{spec.key:30}{spec.kind:10}{dims}  {code:13}{found.label:24}{size:>9}  {spec.note}"
        show(line, sys.stdout)
    return EXIT_OK


def _models_pull(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import pull_model
    from ultimate_embedder.report import make_progress

    access = hub_access(cache_dir=options.cache_dir, refresh=options.refresh_cache, trusted=options.trust_remote_code)
    with make_progress(options.quiet, options.least_level) as progress:
        for key in options.keys:
            model = pull_model(key, access, progress)
            show(f"{model.name}: {model.revision} in {model.path} ({model.note or model.source})", sys.stdout)
    return EXIT_OK


def _models_verify(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import MODELS, check_model

    access = hub_access(cache_dir=options.cache_dir, offline=True)
    failed = False
    for key in options.keys or [spec.key for spec in MODELS]:
        checks = check_model(key, access)
        if options.keys and not checks:
            failed = True
            hint = f"Download it with 'ultimate-embedder models pull {key}'."
            show(f"{key}: not on this machine. {hint}", sys.stdout)
        for check in checks:
            failed = failed or bool(check.problems)
            good = "all checksums match" if check.has_checksums else "complete; there are no checksums to compare"
            show(f"{check.name}: {'; '.join(check.problems) or f'OK: {good}'} ({check.path})", sys.stdout)
    return EXIT_FAILED if failed else EXIT_OK


def _models_manifest(options: argparse.Namespace) -> int:
    import json

    from ultimate_embedder.models import output_manifest

    manifest = output_manifest(options.output, hub_access(cache_dir=options.cache_dir))
    write_line(json.dumps(manifest, indent=2), sys.stdout)
    return EXIT_OK


def _models_show(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import model_rows

    rows = model_rows(options.key, hub_access(cache_dir=options.cache_dir))
    for name, value in rows.items():
        show(f"{name:16} {value}", sys.stdout)
    return EXIT_OK
