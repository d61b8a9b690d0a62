"""`search`: ask a question about what was embedded."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from ultimate_embedder.cli.parser import Commands, add_command, add_option_groups
from ultimate_embedder.cli.process import EXIT_OK, use_arrow_without_pandas
from ultimate_embedder.config import declared_options
from ultimate_embedder.errors import UsageError
from ultimate_embedder.find import SEARCH_OUTPUT, check_question, make_search_config
from ultimate_embedder.terminal import show, write_line

if TYPE_CHECKING:
    from ultimate_embedder.find import Hits

STDIN = "-"
EXAMPLES = """\
search out/ "how do I resume a run?"
search out/ "how do I resume a run?" --top 3 --filter source=faq.md,kaggle.md
search out/ "how do I resume a run?" --rerank bge-reranker-v2-m3
search out/ "how do I resume a run?" --url http://localhost:6333 --json
search out/ - < questions.txt"""


def add_commands(commands: Commands) -> None:
    """Declare the command; its options are those of `make_search_config`."""
    search = add_command(
        commands,
        "search",
        _search,
        help="find chunks of an output that answer a question",
        usage='%(prog)s OUT "QUESTION" [options]',
        description="Search what embed wrote, in its Qdrant shard or on a server. The question is encoded as the "
        "chunks were: models, prompts, dimensions and fusion are read from the output.",
        examples=EXAMPLES,
    )
    groups = add_option_groups(search, make_search_config, in_file=False)
    group = groups.get(SEARCH_OUTPUT) or search.add_argument_group(SEARCH_OUTPUT)
    group.add_argument("--full", action="store_true", help="show whole texts, not only their beginnings")
    group.add_argument(
        "--json", action="store_true", help="print JSON; of several questions an object in each line (JSON Lines)"
    )


def _search(options: argparse.Namespace) -> int:
    given = vars(options)
    names = [option.name for option in declared_options(make_search_config)]
    from_stdin = given["question"] == STDIN
    questions = _questions(sys.stdin) if from_stdin else iter([given["question"]])
    first = next(questions, "")
    config = make_search_config(**{name: given[name] for name in names if name in given} | {"question": first})
    use_arrow_without_pandas()
    from ultimate_embedder.find import Searcher
    from ultimate_embedder.report import make_progress

    with contextlib.ExitStack() as stack:
        with make_progress(quiet=False, least_level=options.least_level) as progress:  # until results are printed
            searcher = stack.enter_context(Searcher(config.place, progress))
            found = searcher.search(config.request)
        _print(found, options, several=from_stdin)
        for question in questions:
            found = searcher.search(replace(config.request, question=check_question(question)))
            _print(found, options, several=True)
    return EXIT_OK


def _questions(stream: IO[str] | None) -> Iterator[str]:
    """One question per line; empty lines are left out."""
    if stream is None:
        raise UsageError("there is no standard input to read questions from.")
    try:
        yield from (line.strip() for line in stream if line.strip())
    except UnicodeDecodeError as error:
        raise UsageError(f"the questions are not valid UTF-8 ({error}).") from error


def _print(found: Hits, options: argparse.Namespace, *, several: bool) -> None:
    from ultimate_embedder.report import hit_lines, time_line

    if options.json:
        write_line(json.dumps(found.as_dict(), indent=None if several else 2), sys.stdout)
    else:
        if several:
            show(found.question, sys.stdout)
        for line in hit_lines(found, shutil.get_terminal_size().columns, full=options.full):
            write_line(line, sys.stdout)
        if several:
            write_line("", sys.stdout)
    if options.least_level is not None and options.least_level <= logging.INFO:
        show(time_line(found), sys.stderr)
