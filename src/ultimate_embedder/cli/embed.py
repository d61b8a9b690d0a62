"""`embed`: compute vectors and write exports."""

from __future__ import annotations

import argparse
import json
import sys

from ultimate_embedder.cli.parser import Commands, add_command, add_option_groups
from ultimate_embedder.cli.process import EXIT_FAILED, EXIT_OK, EXIT_PARTIAL
from ultimate_embedder.options import OUTPUT, make_config
from ultimate_embedder.output import Output
from ultimate_embedder.terminal import write_line


def add_commands(commands: Commands) -> None:
    """Declare the command; its options are those of `make_config`."""
    embed = add_command(
        commands,
        "embed",
        _embed,
        help="compute vectors of chunk files and write exports",
        usage="%(prog)s CHUNKS ... --output DIR [options]",
        description="Embed every collection of CHUNKS. To resume after an interruption, or after adding chunks, "
        "run the same command again: stored vectors are reused.",
        epilog="Exit codes: 0 all done, 1 a collection failed or nothing was found, 2 invalid usage, 3 stopped "
        "early by a deadline or a signal.",
    )
    groups = add_option_groups(embed, make_config)
    groups[OUTPUT].add_argument("--json", action="store_true", help="print the summary as JSON instead of a table")


def _embed(options: argparse.Namespace) -> int:
    given = vars(options)
    as_json = given.pop("json")
    config = make_config(**given)
    from ultimate_embedder.api import run_and_report
    from ultimate_embedder.report import print_summary

    summary = run_and_report(config, quiet=config.quiet)
    if as_json:
        write_line(json.dumps(summary.model_dump(mode="json"), indent=2), sys.stdout)
    else:
        written = config.summary or Output(config.output).summary_path
        print_summary(summary, None if config.dry_run else written, sys.stdout)
    if any(collection.status == "partial" for collection in summary.collections):
        return EXIT_PARTIAL
    return EXIT_OK if summary.ok else EXIT_FAILED
