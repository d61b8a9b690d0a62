"""Hits as text: what was found, with room to read. Everything in it comes from outside, and is made printable."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ultimate_embedder.find import Hit, Hits
from ultimate_embedder.terminal import counted, printable

SHOWN_LINES = 6
WIDEST = 100
NARROWEST = 40
INDENT = "    "


def hit_lines(found: Hits, width: int, *, full: bool = False) -> Iterator[str]:
    """The hits of one question, wrapped to a width; `full` shows whole texts."""
    width = max(NARROWEST, min(width, WIDEST))
    if not found.hits:
        yield from _fill(found.why_empty, width, "")
        return
    for hit in found:
        yield from _hit(hit, found, width, full=full)
        yield ""
    yield from _fill(f"{_about(found)}", width, "")
    if found.reranked is not None:
        yield from _fill(f"reranked by {found.reranked}", width, "")


def time_line(found: Hits) -> str:
    """How long each stage took."""
    stages = [f"{name} {seconds:.2f} s" for name, seconds in found.seconds.items()]
    return f"time: {', '.join(stages)}"


def _hit(hit: Hit, found: Hits, width: int, *, full: bool) -> Iterator[str]:
    where = " > ".join(part for part in (hit.source, *hit.section) if part) or hit.chunk_id
    if len(found.collections) > 1:
        where = f"{hit.collection}: {where}"
    yield from _fill(f"{hit.rank:>2}. {hit.score:.3f}  {where}", width, INDENT)
    details = [f"{name} {'-' if score is None else f'{score:.3f}'}" for name, score in hit.scores.items()]
    if hit.rank_before is not None:
        details.append(f"was {hit.rank_before}.")
    if len(hit.scores) > 1 or hit.rank_before is not None:
        yield from _fill(f"{INDENT}{', '.join(details)}", width, INDENT)
    yield from _text(hit.text, width, full=full)


def _text(text: str, width: int, *, full: bool) -> Iterator[str]:
    """The lines of a text, those that are too long wrapped; the first of them unless it is shown in full."""
    most = None if full else SHOWN_LINES
    cut = text if full else text[: SHOWN_LINES * width]  # of a text of megabytes only the beginning is looked at
    lines = [
        wrapped
        for line in cut.expandtabs(4).splitlines()
        if line.strip()
        for wrapped in textwrap.wrap(printable(line.rstrip()), width - len(INDENT), drop_whitespace=True) or [""]
    ]
    is_cut = most is not None and (len(lines) > most or len(cut) < len(text))
    for number, line in enumerate(lines[:most], 1):
        last = is_cut and number == min(most or 0, len(lines))
        yield f"{INDENT}{line}{' ...' if last else ''}"


def _about(found: Hits) -> str:
    by = {"engine": ", fused by Qdrant", "program": ""}.get(found.fused_by or "", "")
    over = f" over {counted(found.candidates, 'candidate')}" if found.candidates is not None else ""
    return f"{counted(len(found), 'hit')} by {found.using}{over}{by}; {counted(found.points, 'point')} in {found.place}"


def _fill(text: str, width: int, indent: str) -> Iterator[str]:
    yield from textwrap.wrap(printable(text), width, subsequent_indent=indent, break_on_hyphens=False) or [""]
