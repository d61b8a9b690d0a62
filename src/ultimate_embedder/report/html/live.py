"""The parts of the live page: a run at one moment, as HTML. What is shown is what `RunView` says."""

from __future__ import annotations

import shlex

from ultimate_embedder.report.html.words import duration, pairs, share, size, table, text
from ultimate_embedder.report.live import Activity, DeviceRow, Notice, PassRow, RunView
from ultimate_embedder.terminal import counted

MOST_PASSES = 60
MOST_COLLECTIONS = 40
MOST_NOTICES = 40
SIGNS = {"waiting": "…", "running": "▶", "finished": "✓", "stopped": "‖", "failed": "✕", "killed": "✕"}
STYLES = {"finished": "completed", "stopped": "partial", "failed": "failed", "killed": "failed"}
WORDS = {
    "waiting": "No run yet",
    "running": "Running",
    "finished": "Completed",
    "stopped": "Stopped",
    "failed": "Failed",
    "killed": "Killed",
}


def draw_head(view: RunView, status: str, note: str) -> str:
    """How the run is, and its most important numbers; `note` says what else is known of it."""
    told = f"{WORDS[status]} <small>{text(note)}</small>" if note else WORDS[status]
    where = f"<p>{text(view.chunks)} → {text(view.output)}</p>" if view.output else ""
    error = f'<p class="broken">{text(view.error)}</p>' if view.error else ""
    command = f"<pre>{text(shlex.join(view.command))}</pre>" if view.command else ""
    return (
        f'<div class="status {STYLES.get(status, "running")}"><b aria-hidden="true">{SIGNS[status]}</b>{told}</div>'
        f"<h1>{text(_title(view))}</h1>{where}{error}{_figures(view, status)}{command}"
    )


def _title(view: RunView) -> str:
    if not view.passes:
        return "Nothing is encoded yet" if view.started_at is not None else "Waiting for a run"
    done, texts = (sum(getattr(each, name) for each in view.passes) for name in ("done", "texts"))
    models = len({each.model for each in view.passes})
    of_models = f" by {models} models" if models > 1 else ""
    return f"{done:,} of {counted(texts, 'text')} encoded{of_models}"


def _figures(view: RunView, status: str) -> str:
    if view.started_at is None:
        return ""
    items = [("time", duration(view.seconds))]
    if view.passes:
        whole = sum(each.share for each in view.passes) / len(view.passes)
        items.append(("passes", share(whole)))
    if status == "running":
        rate = sum(each.tokens_per_second for each in view.devices)
        items.append(("tokens/s now", f"{rate:,.0f}"))
        left = [each.eta_seconds for each in view.passes if each.eta_seconds is not None]
        if left:
            items.append(("running passes need", duration(max(left))))
    total = view.collections_total if view.collections_total is not None else len(view.collections)
    items.append(("collections", f"{view.collections_done:,} of {total:,}"))
    items.append(("mitigations", f"{sum(each.times for each in view.mitigations):,}"))
    return pairs([(name, text(value)) for name, value in items], "top")


def draw_devices(view: RunView) -> str:
    """A card for each device: memory against its ceiling, speed, idle time, who has it."""
    return f'<div class="cards">{"".join(map(_device, view.devices))}</div>' if view.devices else ""


def _device(row: DeviceRow) -> str:
    held, ceiling = row.held_bytes, row.ceiling_bytes
    if held is None:
        memory = '<p class="soft">memory was not read yet</p>'
    else:
        words = f"{size(held)} of {size(ceiling)}, {share(held / ceiling)}" if ceiling else size(held)
        peak = f", peak {size(row.peak_bytes)}" if row.peak_bytes else ""
        marker = (row.peak_bytes or 0) / ceiling if ceiling else None
        memory = _bar(held / ceiling if ceiling else 0.0, f"memory {words}{peak}", marker)
    facts = [("tokens/s", f"{row.tokens_per_second:,.0f}")]
    if row.idle_share is not None:
        facts.append(("idle", share(row.idle_share)))
    facts.append(("leased by", text(", ".join(row.models) or "nobody")))
    lost = f'<p class="broken">lost: {text(row.lost)}</p>' if row.lost else ""
    return f'<div class="card"><h3>{text(row.name)}</h3>{memory}{pairs(facts)}{lost}</div>'


def _bar(part: float, words: str, marker: float | None = None) -> str:
    """A bar with its words; with a line at `marker`."""
    line = f'<b style="left:{min(1.0, marker):.2%}"></b>' if marker else ""
    return (
        f'<div class="bar" role="img" aria-label="{text(words)}"><i style="width:{max(0.0, min(1.0, part)):.2%}"></i>'
        f"{line}</div><small>{text(words)}</small>"
    )


def draw_passes(view: RunView) -> str:
    """A row for each pass: how far it is, how fast, when it will be done."""
    order = {"running": 0, "waiting": 1, "finished": 2}
    rows = sorted(view.passes, key=lambda each: order[each.state])
    drawn = table(
        ["pass", "progress", "#tokens/s", "#texts/s", "#left", "batch", "where"],
        [_pass(row) for row in rows[:MOST_PASSES]],
    )
    left_out = len(rows) - MOST_PASSES + view.left_out.get("passes", 0)
    more = f"<p>And {left_out:,} more.</p>" if left_out > 0 else ""
    return drawn + more if rows else ""


def _pass(row: PassRow) -> list[str]:
    words = f"{row.done:,} of {counted(row.texts, 'text')}, {share(row.share)}"
    stored = f"<small>{row.stored:,} were stored before</small>" if row.stored else ""
    again = f"<small>began again {counted(row.restarts, 'time')}</small>" if row.restarts else ""
    left = duration(row.eta_seconds) if row.eta_seconds is not None else "done" if row.state == "finished" else "–"
    batch = f"{counted(row.batch_rows, 'row')}<small>{row.batch_tokens:,} tokens</small>" if row.batch_rows else "–"
    return [
        f"{text(row.model)}<small>{text(row.collection)}</small>",
        _bar(row.share, words) + stored + again if row.state != "waiting" else '<span class="soft">waiting</span>',
        f"{row.tokens_per_second:,.0f}" if row.tokens_per_second else "–",
        f"{row.texts_per_second:,.1f}" if row.texts_per_second else "–",
        left,
        batch,
        f"{text(', '.join(row.devices) or '–')}<small>{text(row.dtype)}</small>",
    ]


def draw_activities(view: RunView) -> str:
    """What is under way beside the passes."""
    return f'<ul class="plain">{"".join(map(_activity, view.activities))}</ul>' if view.activities else ""


def _activity(row: Activity) -> str:
    of = f" of {_amount(row.total, row.unit)}" if row.total is not None else ""
    done = f"{_amount(row.done, row.unit)}{of}" if row.done or row.total else ""
    rate = f"{_amount(row.per_second, row.unit)}/s" if row.per_second and row.unit else ""
    left = f"{duration(row.eta_seconds)} left" if row.eta_seconds is not None else ""
    words = ", ".join(word for word in (done, rate, left) if word)
    bar = _bar(row.share, words) if row.share is not None else f"<small>{text(words)}</small>" if words else ""
    return f"<li>{text(row.words)} <small>for {duration(row.seconds)}</small>{bar}</li>"


def _amount(value: float, unit: str) -> str:
    return size(value) if unit == "bytes" else f"{value:,.0f} {unit}".rstrip()


def draw_collections(view: RunView) -> str:
    """A row for each collection, those that are worked on and those that failed first."""
    order = {None: 0, "failed": 1, "partial": 2}
    rows = sorted(view.collections, key=lambda each: order.get(each.status, 3))
    cells = [
        [
            f"{text(row.name)}{f'<small>{text(row.error)}</small>' if row.error else ''}",
            text((row.status or "in progress").replace("_", " ")),
            f"{row.chunks:,}",
            f"{row.rejected:,}",
            f"{row.points:,}",
        ]
        for row in rows[:MOST_COLLECTIONS]
    ]
    left_out = len(rows) - MOST_COLLECTIONS + view.left_out.get("collections", 0)
    more = f"<p>And {left_out:,} more.</p>" if left_out > 0 else ""
    return table(["collection", "status", "#chunks", "#rejected", "#points"], cells) + more if cells else ""


def draw_notices(notices: tuple[Notice, ...], view: RunView) -> str:
    """Mitigations or warnings, the latest first."""
    latest = sorted(notices, key=lambda each: -(each.last_at or each.at))
    items = "".join(f"<li>{_when(each, view)}<span>{text(each.words)}</span></li>" for each in latest[:MOST_NOTICES])
    more = f"<p>And {len(latest) - MOST_NOTICES:,} more.</p>" if len(latest) > MOST_NOTICES else ""
    return f'<ul class="log">{items}</ul>{more}' if items else ""


def _when(notice: Notice, view: RunView) -> str:
    start = view.started_at or 0.0
    words = duration(max(0.0, notice.at - start))
    if notice.times > 1:
        words += f" … {duration(max(0.0, notice.last_at - start))}, {notice.times:,} times"
    return f"<time>{words}</time>"
