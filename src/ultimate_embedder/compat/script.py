"""The V5 command line, translated to the engine's options."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.api import run_and_report
from ultimate_embedder.cli import SuggestingParser
from ultimate_embedder.compat.configs import EnsembleConfig
from ultimate_embedder.compat.options import ensemble_options
from ultimate_embedder.compat.telemetry import Telemetry
from ultimate_embedder.config import OldEnvironment, old_environment, one_of, split_words
from ultimate_embedder.errors import OutputError, UltimateEmbedderError, UsageError
from ultimate_embedder.export import EXPORT_KINDS
from ultimate_embedder.files import write_json
from ultimate_embedder.options import make_config
from ultimate_embedder.output import V5_SUMMARY_NAME, Output, write_summary_copy
from ultimate_embedder.report import RunSummary, SummaryBuilder, print_summary

logger = logging.getLogger(__name__)
DEFAULT_CHUNKS, DEFAULT_OUTPUT = "Chunked", "Embeddings"
ENSEMBLE_MODES = ("auto", "parallel", "sequential", "disabled")
DONE = ("completed", "skipped_existing")


def main(arguments: Sequence[str] | None = None) -> int:
    """Embed; exit code 0 if every collection was completed, or skipped on request."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    given = _parser().parse_args(arguments)
    telemetry, builder = Telemetry(), SummaryBuilder()
    summary = builder.summary
    summary.chunks, summary.output = given.chunks_root, given.output_root
    summary_path = Path(given.summary)
    if summary_path.name == given.summary:  # a plain file name is relative to the output folder
        summary_path = Path(given.output_root) / given.summary
    try:
        config = make_config(
            given.chunks_root, given.output_root, summary=summary_path, **_options(given, old_environment())
        )
        if config.mode == "exclusive":
            logger.info("Exclusive ensemble mode detected: each model leases all devices for the whole collection")
        run_and_report(config, quiet=False, watch=[telemetry, builder])
    except UltimateEmbedderError as error:
        summary.error = str(error)
        print(f"error: {error}", file=sys.stderr)
    try:
        write_summary_copy(summary_path, summary)
    except OutputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _write_stats(summary, Output(Path(given.output_root)), telemetry)
    print_summary(summary, summary_path, sys.stdout)
    if given.zip_output and Path(given.output_root).is_dir():
        print(f"zip: {shutil.make_archive(given.output_root.rstrip('/'), 'zip', given.output_root)}")
    done = all(collection.status in DONE for collection in summary.collections)
    return 0 if done and summary.collections and summary.error is None else 1


def _options(given: argparse.Namespace, environment: OldEnvironment) -> dict[str, Any]:
    """Translate the V5 options to options of the engine."""
    mode = one_of(given.ensemble_mode, ENSEMBLE_MODES, "--ensemble-mode")
    ensemble = EnsembleConfig(
        ensemble_models=split_words(given.ensemble_models) or EnsembleConfig().ensemble_models,
        sequential_passes=mode == "sequential",
        exclusive_mode=given.exclusive_ensemble,
        sequential_data_parallel=given.sequential_data_parallel,
        preferred_devices=split_words(given.sequential_devices) or None,
    ).with_environment(environment)
    wanted = given.enable_ensemble or given.exclusive_ensemble or bool(given.ensemble_models)
    options = ensemble_options(given.model, wanted and mode != "disabled", ensemble, ())
    if mode == "auto" and options["mode"] == "simultaneous":
        options["mode"] = "auto"
    everywhere = given.force_cpu == [] or environment.force_cpu
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
        "refresh_cache": given.refresh_cache or environment.refresh_cache,
        "skip_existing": given.skip_existing,
        "trust_remote_code": given.trust_remote_code,
    }


def _dim(word: str | None) -> int | None:
    if word is not None and not (word.isdecimal() and int(word)):
        raise UsageError(f"--matryoshka-dim {word}: not a number of dimensions. Write 512, for example.")
    return int(word) if word else None


def _write_stats(summary: RunSummary, output: Output, telemetry: Telemetry) -> None:
    """Statistics beside each collection's exports: its passes, leases and mitigations."""
    for collection in summary.collections:
        if collection.status != "completed":
            continue
        stats = {
            "collection": collection.collection,
            "ensemble_mode": summary.ensemble_mode,
            "chunks": collection.chunks.model_dump(),
            "passes": [each.model_dump() for each in collection.passes],
            "lease_events": telemetry.leases_of(collection.collection),
            "mitigation_events": [each.model_dump() for each in collection.mitigations],
            "cache_events": telemetry.cache_events,
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
    parser.add_argument("--ensemble-mode", default="auto", metavar="MODE", help=" | ".join(ENSEMBLE_MODES))
    parser.add_argument("--exclusive-ensemble", action="store_true", help="each model leases all devices in turn")
    parser.add_argument("--sequential-data-parallel", action="store_true", help="nn.DataParallel in sequential mode")
    parser.add_argument("--sequential-devices", default="", metavar="A,B", help="for example 1,0,cpu")
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
