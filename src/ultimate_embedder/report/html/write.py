"""Write `report.html` into an output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder.errors import UsageError
from ultimate_embedder.files import atomic_file
from ultimate_embedder.markup import escaped
from ultimate_embedder.output import EVENTS_NAME, SUMMARY_NAME, Output
from ultimate_embedder.state import Damaged
from ultimate_embedder.terminal import valid_unicode


def report_page(output: Output, *, short_paths: bool = False) -> str:
    """The page from the summary and the event log of an output. Raises `UsageError` or `OSError`.

    With `short_paths` it does not tell the folders of this machine.
    """
    # imported here: a run needs the page at its end, and most commands never
    from ultimate_embedder.report.html.curves import read_curves
    from ultimate_embedder.report.html.page import make_page
    from ultimate_embedder.report.html.short_paths import with_short_paths
    from ultimate_embedder.report.replay import replayed_summary

    summary, ended = output.read_summary(), True
    if summary is None:
        summary, ended = replayed_summary(output.events_path), False
    if summary is None:
        raise UsageError(
            f"{output.folder} has no {SUMMARY_NAME} and no {EVENTS_NAME} that can be read. "
            "Give the --output of an earlier embed."
        )
    try:
        events = read_curves(output.events_path)
    except OSError:  # the page says so
        events = None
    if short_paths:
        summary = with_short_paths(summary)
    return valid_unicode(make_page(summary, events, ended=ended, evaluations=_evaluations(output)))


def write_report(output: Output, *, short_paths: bool = False) -> Path:
    """Write the page into the output. Raises `UsageError` or `OSError`."""
    page = report_page(output, short_paths=short_paths)
    with atomic_file(output.report_path) as file:
        file.write(page.encode())
    return output.report_path


def _evaluations(output: Output) -> Iterator[tuple[str, str, str]]:
    """Sections about what `evaluate` has measured, if it has."""
    if not os.path.lexists(output.evaluation_path):
        return
    from ultimate_embedder.find import journal_identity, read_evaluations
    from ultimate_embedder.report.html.evaluation import evaluation_sections

    found = read_evaluations(output)
    if isinstance(found, Damaged):
        yield "Search quality", "", f'<p class="broken">{escaped(found)}: run evaluate again.</p>'
        return
    known = [each for each in found if each.collection in output.collections]
    stale = [each.collection for each in known if each.points != journal_identity(output[each.collection])]
    yield from evaluation_sections(known, stale)


def try_report(output: Output) -> str | None:
    """Write the page at the end of a run; gives what went wrong, as a page must not fail a run."""
    try:
        write_report(output)
    except Exception as error:  # noqa: BLE001 - whatever it is, vectors and summary are there
        return f"{output.report_path} cannot be written: {getattr(error, 'strerror', None) or error}"
    return None
