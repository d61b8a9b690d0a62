"""`embed`: compute vectors and write exports."""

from __future__ import annotations

import argparse
import json as json_text
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ultimate_embedder.cli.logs import add_verbose, capture_logs, log_options, read_verbose
from ultimate_embedder.cli.parser import Commands, add_command, add_option_groups
from ultimate_embedder.cli.process import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL, use_arrow_without_pandas
from ultimate_embedder.config import (
    Option,
    RunConfig,
    declared_options,
    parse_hnsw,
    read_option_file,
    write_option_file,
)
from ultimate_embedder.errors import UsageError
from ultimate_embedder.options import BASICS, OUTPUT, make_config
from ultimate_embedder.output import Output
from ultimate_embedder.terminal import write_line

if TYPE_CHECKING:
    from ultimate_embedder.report import RunSummary

EXAMPLES = """\
embed chunks/ -o out/
embed chunks/ -o out/ --models bge-m3 --max-tokens 1024
embed chunks/ -o out/ --models bge-m3=0.7,minilm=0.3
embed chunks/ -o out/ --deadline 11h --save-config run.toml
embed --config run.toml --offline
embed chunks/ -o out/ --dry-run"""
CODES = (
    "Exit codes: 0 all done, 1 a collection failed or nothing was found, 2 invalid usage, 3 stopped early by a "
    "deadline or a signal, 130 interrupted twice."
)
SERVER = "http://localhost:6333"  # where a Qdrant server listens by default


def print_options(
    *,
    json: Annotated[bool, Option("print the summary as JSON instead of a table", OUTPUT)] = False,
) -> None:
    """The options of `embed` about what it prints in the end."""


OPTIONS = tuple(
    option for function in (make_config, print_options, log_options) for option in declared_options(function)
)
"""All options that can be in an option file."""


def add_commands(commands: Commands) -> None:
    """Declare the command; its options are those of `make_config`."""
    embed = add_command(
        commands,
        "embed",
        _embed,
        help="compute vectors of chunk files and write exports",
        usage="%(prog)s CHUNKS ... -o DIR [options]",
        description="Embed every collection of CHUNKS. To resume after an interruption, or after adding chunks, "
        "run the same command again: stored vectors are reused.",
        examples=EXAMPLES,
        epilog=CODES,
        logs=False,
    )
    groups = add_option_groups(embed, make_config, print_options, log_options)
    for flag, help in (
        ("--config", "read options from this TOML file; the command line wins"),
        ("--save-config", "write the options of this run to a TOML file, for --config"),
    ):
        groups[BASICS].add_argument(flag, metavar="FILE", type=Path, help=help)
    add_verbose(groups[declared_options(log_options)[0].about.group])


def _embed(options: argparse.Namespace) -> int:
    given = vars(options)
    words, file, save = given.pop("words"), given.pop("config"), given.pop("save_config")
    read_verbose(given)
    from_file = read_option_file(file, OPTIONS) if file else {}
    chosen = {**from_file, **given}
    config = _make_config(chosen, file, only_in_file=set(from_file) - set(given))
    with capture_logs(chosen.get("log_level"), chosen.get("log_file")) as least_level:
        if save:
            kept = {name: value for name, value in chosen.items() if name != "dry_run"}  # a rehearsal
            write_option_file(save, OPTIONS, kept, f"ultimate-embedder embed --config {shlex.quote(str(save))}")
        use_arrow_without_pandas()
        from ultimate_embedder.api import run_and_report
        from ultimate_embedder.report import print_summary

        summary = run_and_report(config, quiet=config.quiet, least_level=least_level, command=words)
    if chosen.get("json"):
        write_line(json_text.dumps(summary.model_dump(mode="json"), indent=2), sys.stdout)
    else:
        written = config.summary or Output(config.output).summary_path
        last = _last_lines(summary, config, words, chosen.get("log_file"))
        print_summary(summary, None if config.dry_run else written, sys.stdout, last)
    if _is_partial(summary):
        return EXIT_PARTIAL
    return EXIT_OK if summary.ok else EXIT_FAILED


def _make_config(chosen: dict[str, Any], file: Path | None, only_in_file: set[str]) -> RunConfig:
    """The checked options; an error about an option of the file names the file."""
    names = {option.name: option for option in declared_options(make_config)}
    if missing := [option.flag for option in names.values() if option.required and option.name not in chosen]:
        parse_hnsw(chosen.get("hnsw", False), "--hnsw")  # its value may be CHUNKS, which then seems to be missing
        example = "ultimate-embedder embed chunks/ -o out/"
        raise UsageError(f"embed needs {' and '.join(missing)}: {example} (or {' and '.join(missing)} in --config).")
    try:
        return make_config(**{name: value for name, value in chosen.items() if name in names})
    except UsageError as error:
        about = str(error).split(" ", 1)[0].rstrip(":")
        if any(names[name].flag == about for name in only_in_file if name in names):
            raise UsageError(f"{file}: {error}") from error
        raise


def _is_partial(summary: RunSummary) -> bool:
    return any(collection.status == "partial" for collection in summary.collections)


def _last_lines(summary: RunSummary, config: RunConfig, words: list[str], log_file: Any) -> list[str]:
    """Where the report and the log are, if somebody may want to read it, and what to type next."""
    output, lines = Output(config.output), []
    if summary.collections and not config.dry_run and not config.no_report and output.report_path.is_file():
        lines.append(f"report: {output.report_path}")
    if log_file is not None:
        lines.append(f"log: {log_file}")
    elif not config.dry_run and any(collection.status == "failed" for collection in summary.collections):
        lines.append(f"log: {output.events_path}")
    following = _next_command(summary, config, words)
    return [*lines, f"next: {following}"] if following else lines


def _next_command(summary: RunSummary, config: RunConfig, words: list[str]) -> str | None:
    """What to type next: the same command to resume or to begin, or an upload; None where that is not known."""
    if _is_partial(summary):  # not with --fresh, which would begin again
        again = [word for word in words if word != "--fresh"]
        return _command(*again, *(["--no-fresh"] if config.fresh and again == words else []))
    if not summary.ok:
        return None
    if config.dry_run:
        return _command(*(word for word in words if word != "--dry-run")) if "--dry-run" in words else None
    if any(export.kind == "parquet" for collection in summary.collections for export in collection.exports):
        return _command("upload", str(config.output), "--url", SERVER)
    return None


def _command(*words: str) -> str:
    return shlex.join(["ultimate-embedder", *words])
