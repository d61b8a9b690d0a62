"""`evaluate`: what each way to search an output is worth."""

from __future__ import annotations

import argparse
import json
import sys

from ultimate_embedder.cli.parser import Commands, add_command, add_option_groups
from ultimate_embedder.cli.process import EXIT_OK
from ultimate_embedder.config import declared_options
from ultimate_embedder.find import EVALUATION_OUTPUT, make_evaluate_config
from ultimate_embedder.terminal import show, write_line

EXAMPLES = """\
evaluate out/ --queries queries.jsonl --qrels qrels.tsv
evaluate out/ --queries queries.jsonl --qrels qrels.tsv --tune --html evaluation.html
evaluate out/ --queries queries.jsonl --qrels qrels.tsv --against out-with-another-model/
evaluate out/ --make-queries"""


def add_commands(commands: Commands) -> None:
    """Declare the command; its options are those of `make_evaluate_config`."""
    evaluate = add_command(
        commands,
        "evaluate",
        _evaluate,
        help="measure what each model and fusion finds, by queries with judgements",
        description="Measure nDCG@10, recall@100, MRR@10 and MAP of each model alone, of every fusion, of sparse and "
        "hybrid search, and of truncated and quantized vectors, from what is stored: only the queries are encoded. "
        "Says whether the ensemble beats its best model, which model can be dropped, and what to take.",
        examples=EXAMPLES,
    )
    groups = add_option_groups(evaluate, make_evaluate_config, in_file=False)
    groups[EVALUATION_OUTPUT].add_argument("--json", action="store_true", help="print the result as JSON")


def _evaluate(options: argparse.Namespace) -> int:
    given = vars(options)
    config = make_evaluate_config(**{each.name: given[each.name] for each in declared_options(make_evaluate_config)})
    from ultimate_embedder.api import run_evaluation
    from ultimate_embedder.report import evaluation_lines

    found = run_evaluation(config, options.least_level)
    if options.json:
        write_line(json.dumps(found.as_dict(), indent=2), sys.stdout)
    else:
        for line in evaluation_lines(found):
            show(line, sys.stdout)
    if config.html is not None:
        show(str(config.html), sys.stderr if options.json else sys.stdout)
    return EXIT_OK
