"""The command line: words in, words out. Data goes to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ultimate_embedder.arguments import USAGE_EXIT_CODE, build_parser
from ultimate_embedder.config import hub_access, make_config
from ultimate_embedder.errors import UltimateEmbedderError, UsageError

if TYPE_CHECKING:
    from ultimate_embedder.verify import Verification

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_NOT_CHECKED, EXIT_INTERRUPTED = 0, 1, USAGE_EXIT_CODE, 3, 4, 130


def run() -> int:
    """The installed command: `main`, and a quick end."""
    try:
        return main()
    finally:
        gc.freeze()  # else Python looks through half a million objects of torch for garbage, just before it ends


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    try:
        options = build_parser().parse_args(arguments)
        return COMMANDS[options.command](options)
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
        _throw_output_away()
        return EXIT_FAILED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _throw_output_away()
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED


def _throw_output_away() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _embed(options: argparse.Namespace) -> int:
    config = make_config(
        options.chunks,
        options.output,
        collections=options.collections,
        models=options.models,
        mode=options.mode,
        fusion=options.fusion,
        parallelism=options.parallelism,
        keep_primary=options.keep_primary,
        warm_cache=options.warm_cache,
        no_ensemble=options.no_ensemble,
        force_cpu=options.force_cpu,
        devices=options.devices,
        device_order=options.device_order,
        max_tokens=options.max_tokens,
        token_cap=options.token_cap,
        dim=options.dim,
        precision=options.precision,
        backend=options.backend,
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
        skip_existing=options.skip_existing,
        deadline=options.deadline,
        fresh=options.fresh,
        resume_from=options.resume_from,
    )
    from ultimate_embedder.api import run_and_report
    from ultimate_embedder.report import print_summary

    summary = run_and_report(config, quiet=options.quiet)
    try:
        if options.json:
            print(summary.model_dump_json(indent=2), flush=True)
        else:
            print_summary(summary, None if config.dry_run else config.summary_path, sys.stdout)
            sys.stdout.flush()
    except BrokenPipeError:  # nobody reads it; it is in the summary, and the work is done or not all the same
        _throw_output_away()
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
    from ultimate_embedder.status import output_status

    passes = output_status(options.folder)
    print(f"{'collection':24}{'model':34}{'dtype':10}{'vectors':>9}{'missing':>9}{'shards':>8}{'MB':>9}  next")
    for each in passes:
        missing = "?" if each.missing is None else each.missing
        counts = f"{each.rows:>9}{missing:>9}{each.shards:>8}{each.size_bytes / 1e6:>9.1f}"
        print(f"{each.collection:24}{each.model:34}{each.dtype:10}{counts}  {each.next}")
    return EXIT_OK


def _verify(options: argparse.Namespace) -> int:
    from ultimate_embedder.verify import verify_output

    if options.sample < 0:
        raise UsageError(f"--sample {options.sample}: must be at least 0.")
    access = hub_access(cache_dir=options.cache_dir, offline=True, trusted=options.trust_remote_code)
    found = verify_output(options.folder, options.sample, access)
    for words in (*found.damaged, *found.unchecked):
        print(words)
    print(_verified(found))
    if found.damaged:
        print("Run the same embed command again: what is damaged is computed and written anew.", file=sys.stderr)
        return EXIT_FAILED
    if found.unchecked:
        return EXIT_NOT_CHECKED
    print("OK: all checksums match")
    return EXIT_OK


def _verified(found: Verification) -> str:
    result = f"{found.mismatches} do not match" if found.mismatches else "all match"
    recomputed = f"recomputed {_count(found.vectors, 'vector')}" + (f": {result}" if found.vectors else "")
    return f"checked {_count(found.shards, 'shard')} and {_count(found.exports, 'export')}; {recomputed}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


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
    from ultimate_embedder.models import MODELS, check_model

    access = hub_access(cache_dir=options.cache_dir, offline=True)
    failed = False
    for key in options.keys or [spec.key for spec in MODELS]:
        checks = check_model(key, access)
        if options.keys and not checks:
            failed = True
            print(f"{key}: not on this machine. Fetch it with 'ultimate-embedder models pull {key}'.")
        for check in checks:
            failed = failed or bool(check.problems)
            good = "all checksums match" if check.has_checksums else "complete; there are no checksums to compare"
            print(f"{check.name}: {'; '.join(check.problems) or f'OK: {good}'} ({check.path})")
    return EXIT_FAILED if failed else EXIT_OK


def _models_manifest(options: argparse.Namespace) -> int:
    import json

    from ultimate_embedder.models import output_manifest

    print(json.dumps(output_manifest(options.output, hub_access(cache_dir=options.cache_dir)), indent=2))
    return EXIT_OK


def _models_show(options: argparse.Namespace) -> int:
    from ultimate_embedder.models import model_rows

    rows = model_rows(options.key, hub_access(cache_dir=options.cache_dir))
    for name, value in rows.items():
        print(f"{name:16} {value}")
    return EXIT_OK


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "embed": _embed,
    "models_list": _models_list,
    "models_manifest": _models_manifest,
    "models_pull": _models_pull,
    "models_show": _models_show,
    "models_verify": _models_verify,
    "status": _status,
    "upload": _upload,
    "verify": _verify,
}
