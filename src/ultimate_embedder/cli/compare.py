"""`compare`: two outputs side by side."""

from __future__ import annotations

import argparse
import json
import sys

from ultimate_embedder.cli.parser import Commands, add_command, add_option_groups
from ultimate_embedder.cli.process import EXIT_NOT_CHECKED, EXIT_OK
from ultimate_embedder.config import COMPARE_OUTPUT, declared_options, make_compare_config
from ultimate_embedder.terminal import show, write_line


def add_commands(commands: Commands) -> None:
    """Declare the command; its options are those of `make_compare_config`."""
    compare = add_command(
        commands,
        "compare",
        _compare,
        help="compare two outputs: options, speed, memory, and how far their vectors agree",
        description="Compare two outputs of the same chunks: what differs of options and models, throughput, peaks, "
        "mitigations and times, and for the texts that both have the cosines of their vectors and the overlap of their "
        "nearest neighbours. Vectors of different models are compared by neighbours alone.",
        examples="compare out-a/ out-b/\ncompare out-a/ out-b/ --collection docs --html comparison.html",
        epilog="Exit codes: 0 everything was compared, 2 invalid usage, 4 some vectors could not be compared.",
    )
    groups = add_option_groups(compare, make_compare_config, in_file=False)
    groups[COMPARE_OUTPUT].add_argument("--json", action="store_true", help="print the comparison as JSON")


def _compare(options: argparse.Namespace) -> int:
    given = vars(options)
    config = make_compare_config(**{each.name: given[each.name] for each in declared_options(make_compare_config)})
    from ultimate_embedder.api import run_comparison
    from ultimate_embedder.report import comparison_lines

    found = run_comparison(config)
    if options.json:
        write_line(json.dumps(found.as_dict(), indent=2), sys.stdout)
    else:
        for line in comparison_lines(found):
            show(line, sys.stdout)
    if config.html is not None:
        show(str(config.html), sys.stderr if options.json else sys.stdout)
    return EXIT_OK if found.complete else EXIT_NOT_CHECKED
