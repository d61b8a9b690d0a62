"""The state of a run as text, for those who look once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ultimate_embedder.report.live.layout import bar_for, plain
from ultimate_embedder.report.live.lines import heading, machine_lines, pass_lines, work_lines
from ultimate_embedder.report.live.rows import Notice, PassRow
from ultimate_embedder.report.live.sentences import devices_in_words
from ultimate_embedder.report.live.watch import Look
from ultimate_embedder.terminal import counted, printable

MOST_NOTICES = 20


def state_lines(look: Look, width: int, encoding: str | None = None) -> Iterator[str]:
    """Everything that is known of a run, the verdict first."""
    view, bars = look.view, bar_for(encoding)
    yield f"{printable(str(look.folder))}: {look.verdict.words}"
    for each in view.collections if len(view.collections) > 1 or look.verdict.is_over else ():
        rejected = f", {each.rejected:,} rejected" if each.rejected else ""
        yield f"{each.name}: {each.status or 'not finished'}, {counted(each.chunks, 'chunk')}{rejected}"
    passes = [_ended(each) for each in view.passes] if look.verdict.is_over else view.passes
    lines = [*machine_lines(view, width, bars), *pass_lines(passes, width, bars)]
    if not look.verdict.is_over:
        lines = [*heading(view), *lines, *work_lines(view.activities, width, bars)]
    yield from map(plain, lines)
    yield from _notices("mitigations", view.mitigations)
    yield from _notices("warnings", view.warnings)
    for lease in view.leases if not look.verdict.is_over else ():
        yield f"{lease.model} has leased {devices_in_words(lease.devices)} since {clock(lease.since)}"
    if look.damaged_lines:
        yield f"{counted(look.damaged_lines, 'line')} of events.jsonl cannot be read"


def _ended(row: PassRow) -> PassRow:
    """A pass that nobody goes on with has no time left."""
    return replace(row, state="finished", eta_seconds=None) if row.state == "running" else row


def _notices(title: str, notices: Sequence[Notice]) -> Iterator[str]:
    if not notices:
        return
    yield f"{title}:"
    if len(notices) > MOST_NOTICES:
        yield f"  … {len(notices) - MOST_NOTICES:,} earlier"
    for each in notices[-MOST_NOTICES:]:
        where = f"{each.collection}: " if each.collection else ""
        times = f" ({each.times:,} times, last at {clock(each.last_at)})" if each.times > 1 else ""
        yield f"  {clock(each.at)}  {where}{each.words}{times}"


def clock(timestamp: float) -> str:
    """The time of the day."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(timestamp))
    except (ValueError, OverflowError, OSError):
        return "?"
