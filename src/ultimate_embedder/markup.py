"""Small HTML tables for notebooks. All text is escaped: names of files and collections come from outside."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from ultimate_embedder.terminal import printable


def html_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> str:
    """A title, a table with numbers aligned to the right, and a line for each note."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    head = "".join(f'<th style="text-align: left">{escaped(heading)}</th>' for heading in headings)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
    lines = "".join(f'<div style="font-size: 90%">{escaped(note)}</div>' for note in notes)
    return f"<div><div><b>{escaped(title)}</b></div>{table}{lines}</div>"


def escaped(text: object) -> str:
    """The text as it is shown, with nothing in it that HTML or a terminal would act on."""
    return html.escape(printable(str(text)))


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        return f'<td style="text-align: right">{shown}</td>'
    return f'<td style="text-align: left">{escaped(value)}</td>'
