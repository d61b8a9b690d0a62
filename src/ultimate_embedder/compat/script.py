"""The V5 command line, translated to the engine's options."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.api import run_and_report
from ultimate_embedder.cli import SuggestingParser
from ultimate_embedder.compat.announce import EXCLUSIVE_DETECTED, announce
from ultimate_embedder.compat.archive import zip_output
from ultimate_embedder.compat.configs import EnsembleConfig
from ultimate_embedder.compat.missing import name_option
from ultimate_embedder.compat.options import ensemble_options
from ultimate_embedder.compat.telemetry import Telemetry
from ultimate_embedder.config import OldEnvironment, old_environment, one_of, split_words
from ultimate_embedder.errors import OutputError, UltimateEmbedderError, UsageError
from ultimate_embedder.export import EXPORT_KINDS
from ultimate_embedder.files import write_json
from ultimate_embedder.options import make_config
from ultimate_embedder.output import V5_SUMMARY_NAME, Output, write_summary_copy
from ultimate_embedder.report import RunSummary, SummaryBuilder, print_summary
from ultimate_embedder.terminal import show, valid_unicode

logger = logging.getLogger(__name__)
DEFAULT_CHUNKS, DEFAULT_OUTPUT = "Chunked", "Embeddings"
ENSEMBLE_MODES = ("auto", "parallel", "sequential", "disabled")
DONE = ("completed", "skipped_existing")


def main(arguments: Sequence[str] | None = None) -> int:
    """Embed; exit code 0 if every collection was completed, or skipped on request."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    given = _parser().parse_args(arguments)
    telemetry = Telemetry()
    builder = SummaryBuilder(telemetry.of_collection)
    summary = builder.summary
    summary.chunks, summary.output = valid_unicode(given.chunks_root), valid_unicode(given.output_root)
    summary_path = Path(given.summary)
    if summary_path.name == given.summary:  # a plain file name is relative to the output folder
        summary_path = Path(given.output_root) / given.summary
    try:
        options = _options(given, old_environment())
        config = make_config(given.chunks_root, given.output_root, summary=summary_path, **options)
        if warning := _mode_without_effect(given):
            logger.warning(warning)
            summary.warnings.append(warning)
        if config.mode == "exclusive":
            announce(logger, EXCLUSIVE_DETECTED)
        with name_option("--allow-missing-companions", config):
            run_and_report(config, quiet=False, watch=[telemetry], builder=builder)
    except UltimateEmbedderError as error:
        summary.error = valid_unicode(str(error))
        show(f"error: {error}", sys.stderr)
    try:
        write_summary_copy(summary_path, summary)
    except OutputError as error:
        show(f"error: {error}", sys.stderr)
        return 1
    output = Output(Path(given.output_root))
    _write_stats(summary, output)
    print_summary(summary, summary_path, sys.stdout)
    if given.zip_output and output.folder.is_dir():  # last: summary and statistics are in it as they stay
        show(f"zip: {zip_output(output)}", sys.stdout)
    done = all(collection.status in DONE for collection in summary.collections)
    return 0 if done and summary.collections and summary.error is None else 1


def _options(given: argparse.Namespace, environment: OldEnvironment) -> dict[str, Any]:
    """Translate the V5 options to options of the engine; the command line goes before the environment."""
    mode = one_of(given.ensemble_mode or "auto", ENSEMBLE_MODES, "--ensemble-mode")
    asked = EnsembleConfig(
        ensemble_models=split_words(given.ensemble_models) or EnsembleConfig().ensemble_models,
        sequential_passes=mode == "sequential",
        exclusive_mode=given.exclusive_ensemble,
        preferred_devices=split_words(given.sequential_devices) or None,
        allow_missing_companions=given.allow_missing_companions,
    )
    ensemble = asked.with_environment(_not_overruled(environment, given))
    options = ensemble_options(given.model, _wants_ensemble(given) and mode != "disabled", ensemble, ())
    if mode == "auto" and options["mode"] == "simultaneous":
        options["mode"] = "auto"
    everywhere = environment.force_cpu if given.force_cpu is None else not given.force_cpu
    return {
        **options,
        "collections": given.collections or None,
        "exports": EXPORT_KINDS,
        "devices": "cpu" if everywhere else None,
        "force_cpu": given.force_cpu or (),
        "no_ensemble": given.no_ensemble or (),
        "dim": _dim(given.matryoshka_dim),
        "cache_dir": given.cache_dir,
        "offline": given.offline,
        "refresh_cache": given.refresh_cache or (environment.refresh_cache and not given.offline),
        "skip_existing": given.skip_existing,
        "trust_remote_code": given.trust_remote_code,
    }


def _not_overruled(environment: OldEnvironment, given: argparse.Namespace) -> OldEnvironment:
    """What the environment says about an ensemble, as far as the command line does not say otherwise."""
    chosen = given.ensemble_mode is not None or given.exclusive_ensemble
    split = given.sequential_data_parallel
    return dataclasses.replace(
        environment,
        sequential=environment.sequential and not chosen,
        exclusive=environment.exclusive and not chosen,
        sequential_data_parallel=environment.sequential_data_parallel if split is None else split,
    )


def _wants_ensemble(given: argparse.Namespace) -> bool:
    return bool(given.enable_ensemble or given.exclusive_ensemble or given.ensemble_models)


def _mode_without_effect(given: argparse.Namespace) -> str | None:
    if given.ensemble_mode in (None, "disabled") or _wants_ensemble(given):
        return None
    return f"--ensemble-mode {given.ensemble_mode} has no effect without --enable-ensemble: one model is used."


def _dim(word: str | None) -> int | None:
    if word is not None and not (word.isdecimal() and int(word)):
        raise UsageError(f"--matryoshka-dim {word}: not a number of dimensions. Write 512, for example.")
    return int(word) if word else None


def _write_stats(summary: RunSummary, output: Output) -> None:
    """Statistics beside each collection's exports: its passes, leases and mitigations."""
    for collection in summary.collections:
        if collection.status != "completed" or collection.telemetry is None:
            continue
        stats = {
            "collection": collection.collection,
            "ensemble_mode": summary.ensemble_mode,
            "chunks": collection.chunks.model_dump(),
            "passes": [each.model_dump() for each in collection.passes],
            **collection.telemetry.model_dump(),
        }
        write_json(output.collection(collection.collection).stats, stats)


def _parser() -> argparse.ArgumentParser:
    parser = SuggestingParser(prog="embed_collections_v5.py", description=__doc__)
    parser.add_argument("--chunks-root", default=DEFAULT_CHUNKS, metavar="DIR", help="folder of collections")
    parser.add_argument("--output-root", default=DEFAULT_OUTPUT, metavar="DIR", help="output folder")
    parser.add_argument("--collections", nargs="*", metavar="NAME", help="embed only these (default: all)")
    parser.add_argument("--model", default="jina-code-embeddings-1.5b", metavar="NAME", help="the primary model")
    parser.add_argument(
        "--enable-ensemble", action="store_true", help="embed with several models and fuse their vectors"
    )
    parser.add_argument(
        "--ensemble-models", default="", metavar="A,B", help="models of the ensemble (default: jina-code, bge-m3)"
    )
    parser.add_argument("--ensemble-mode", metavar="MODE", help=f"{' | '.join(ENSEMBLE_MODES)} (default: auto)")
    parser.add_argument("--exclusive-ensemble", action="store_true", help="each model leases all devices in turn")
    turns = parser.add_mutually_exclusive_group()
    for flag, wanted, words in (("", True, "all GPUs in sequential mode (default)"), ("no-", False, "one GPU there")):
        turns.add_argument(
            f"--{flag}sequential-data-parallel",
            action="store_const",
            const=wanted,
            dest="sequential_data_parallel",
            help=words,
        )
    parser.add_argument("--sequential-devices", default="", metavar="A,B", help="for example 1,0,cpu")
    parser.add_argument(
        "--allow-missing-companions", action="store_true", help="continue without companions that are missing"
    )
    parser.add_argument("--skip-existing", action="store_true", help="skip completed collections")
    parser.add_argument(
        "--summary", default=V5_SUMMARY_NAME, metavar="PATH", help="file name in the output folder, or path"
    )
    parser.add_argument("--zip-output", action="store_true", help="also write the output folder as a zip file")
    parser.add_argument("--matryoshka-dim", metavar="N", help="truncate vectors to N dimensions (Matryoshka models)")
    parser.add_argument("--force-cpu", nargs="*", metavar="NAME", help="use no GPU for these collections, or for all")
    parser.add_argument(
        "--no-ensemble", nargs="+", metavar="NAME", help="use only the primary model for these collections"
    )
    parser.add_argument("--offline", action="store_true", help="never use the network")
    parser.add_argument("--refresh-cache", action="store_true", help="ask the hub for newer commits of the models")
    parser.add_argument("--cache-dir", metavar="DIR", help="the Hugging Face cache")
    parser.add_argument(
        "--trust-remote-code", default="", metavar="KEY,...", help="models that may run code from their repository"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
