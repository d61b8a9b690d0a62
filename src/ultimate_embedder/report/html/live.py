"""The parts of the live page: a run at one moment, as HTML. What is shown is what `RunView` says."""

from __future__ import annotations

import shlex

from ultimate_embedder.report.html.words import duration, pairs, share, size, table, text
from ultimate_embedder.report.live import Activity, DeviceRow, Look, NodeRow, Notice, PassRow, RunView
from ultimate_embedder.report.live.lines import percent, rough
from ultimate_embedder.report.live.sentences import devices_in_words
from ultimate_embedder.terminal import counted
from ultimate_embedder.types import by_node, node_of

MOST_PASSES = 60
MOST_COLLECTIONS = 40
MOST_NOTICES = 40
SIGNS = {"waiting": "…", "running": "▶", "finished": "✓", "stopped": "‖", "not_running_here": "?"}
STYLES = {"finished": "completed", "stopped": "partial", "failed": "failed", "killed": "failed"}


def draw_head(look: Look) -> str:
    """How the run is, and its most important numbers."""
    view, status = look.view, look.verdict.status
    where = f"<p>{text(view.chunks)} → {text(view.output)}</p>" if view.output else ""
    command = f"<pre>{text(shlex.join(view.command))}</pre>" if view.command else ""
    damaged = ""
    if look.damaged_lines:
        damaged = f'<p class="broken">{counted(look.damaged_lines, "line")} of the log cannot be read.</p>'
    return (
        f'<div class="status {STYLES.get(status, "running")}"><b aria-hidden="true">{SIGNS.get(status, "✕")}</b>'
        f"{text(_upper(look.verdict.words))}</div>"
        f"<h1>{text(_title(view))}</h1>{where}{damaged}{_figures(look)}{command}"
    )


def draw_problem(why: str) -> str:
    """The head where there is nothing to show."""
    return f'<h1>Nothing to show</h1><p class="broken">{text(why)}</p>'


def title_of(look: Look) -> str:
    """The title of the page: how far the run is, for a tab that is not looked at."""
    view, status = look.view, look.verdict.status.replace("_", " ")
    done = f"{percent(_whole(view))} " if view.passes and not look.verdict.is_over else ""
    return f"{done}{status}: {look.folder.name}"


def seconds_of(look: Look) -> float:
    """How long the run has taken, or had when it was last heard of."""
    view = look.view
    if look.verdict.status in ("killed", "not_running_here"):
        return max(0.0, (view.at or 0.0) - (view.started_at or 0.0))
    return view.seconds


def _upper(words: str) -> str:
    return words[:1].upper() + words[1:]


def _whole(view: RunView) -> float:
    return sum(each.share for each in view.passes) / len(view.passes)


def _title(view: RunView) -> str:
    if not view.passes:
        return "Nothing is encoded yet" if view.started_at is not None else "Waiting for a run"
    done, texts = (sum(getattr(each, name) for each in view.passes) for name in ("done", "texts"))
    models = len({each.model for each in view.passes})
    of_models = f" by {models} models" if models > 1 else ""
    return f"{done:,} of {counted(texts, 'text')} encoded{of_models}"


def _figures(look: Look) -> str:
    view = look.view
    if view.started_at is None:
        return ""
    items = [("time", duration(seconds_of(look)))]
    if view.passes:
        items.append(("progress", percent(_whole(view))))
    if look.verdict.status == "running":
        items.append(("tokens/s now", f"{sum(each.tokens_per_second for each in view.devices):,.0f}"))
        if left := [each.eta_seconds for each in view.passes if each.eta_seconds is not None]:
            items.append(("running passes need", rough(max(left))))
    total = view.collections_total if view.collections_total is not None else len(view.collections)
    items.append(("collections", f"{view.collections_done:,} of {total:,}"))
    items.append(("mitigations", f"{sum(each.times for each in view.mitigations):,}"))
    return pairs([(name, text(value)) for name, value in items], "top")


def draw_devices(look: Look) -> str:
    """A card for each device: memory against its ceiling, and while the run goes on speed, idle time and who has it.

    Those of a node are together, below its name.
    """
    view, by_nodes = look.view, {row.name: "" for row in look.view.nodes}
    for row in sorted(view.devices, key=lambda each: by_node(each.name)):
        node = node_of(row.name) or ""
        by_nodes[node] = by_nodes.get(node, "") + _device(row, look.verdict.is_over)
    nodes = {row.name: _node(row) for row in view.nodes}
    parts = [
        nodes.get(name, "") + (f'<div class="cards">{cards}</div>' if cards else "") for name, cards in by_nodes.items()
    ]
    left_out = view.left_out.get("devices", 0)
    return "".join(parts) + (f"<p>And {left_out:,} more.</p>" if left_out else "")


def _node(row: NodeRow) -> str:
    about = ", ".join(word for word in (row.address, row.host, row.dtype) if word)
    lost = f", lost {counted(row.lost, 'time')}" if row.lost else ""
    why = f'<p class="broken">{text(row.state)}: {text(row.why)}</p>' if row.why else ""
    return f"<h3>{text(row.name)} <small>{text(about)}{lost}</small></h3>{why}"


def _device(row: DeviceRow, is_over: bool) -> str:
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
        facts.append(("idle", f"{row.idle_share:.0%}"))
    facts.append(("leased by", text(", ".join(row.models) or "nobody")))
    facts = [] if is_over else facts
    lost = f'<p class="broken">lost: {text(row.lost)}</p>' if row.lost else ""
    return f'<div class="card"><h3>{text(row.name)}</h3>{memory}{pairs(facts) if facts else ""}{lost}</div>'


def _bar(part: float, words: str, marker: float | None = None) -> str:
    """A bar with its words; with a line at `marker`."""
    line = f'<b style="left:{min(1.0, marker):.2%}"></b>' if marker else ""
    return (
        f'<div class="bar" role="img" aria-label="{text(words)}"><i style="width:{max(0.0, min(1.0, part)):.2%}"></i>'
        f"{line}</div><small>{text(words)}</small>"
    )


def draw_passes(look: Look) -> str:
    """A row for each pass: how far it is, how fast, when it will be done."""
    view, is_over = look.view, look.verdict.is_over
    order = {"running": 0, "waiting": 1, "finished": 2}
    rows = sorted(view.passes, key=lambda each: order[each.state])
    drawn = table(
        ["pass", "progress", "#tokens/s", "#texts/s", "#left", "batch", "where"],
        [_pass(row, is_over) for row in rows[:MOST_PASSES]],
    )
    left_out = len(rows) - MOST_PASSES + view.left_out.get("passes", 0)
    more = f"<p>And {left_out:,} more.</p>" if left_out > 0 else ""
    return drawn + more if rows else ""


def _pass(row: PassRow, is_over: bool) -> list[str]:
    words = f"{row.done:,} of {counted(row.texts, 'text')}, {percent(row.share)}"
    stored = f"<small>{row.stored:,} were stored before</small>" if row.stored else ""
    again = f"<small>began again {counted(row.restarts, 'time')}</small>" if row.restarts else ""
    left = "done" if row.share >= 1 else "not ended" if is_over and row.state != "waiting" else "–"
    if row.eta_seconds is not None and not is_over:
        left = rough(row.eta_seconds)
    batch = f"{counted(row.batch_rows, 'row')}<small>{row.batch_tokens:,} tokens</small>" if row.batch_rows else "–"
    return [
        f"{text(row.model)}<small>{text(row.collection)}</small>",
        _bar(row.share, words) + stored + again if row.state != "waiting" else '<span class="soft">waiting</span>',
        f"{row.tokens_per_second:,.0f}" if row.tokens_per_second else "–",
        f"{row.texts_per_second:,.1f}" if row.texts_per_second else "–",
        left,
        batch,
        f"{text(devices_in_words(row.devices) or '–')}<small>{text(row.dtype)}</small>",
    ]


def draw_activities(view: RunView) -> str:
    """What is under way beside the passes."""
    return f'<ul class="plain">{"".join(map(_activity, view.activities))}</ul>' if view.activities else ""


def _activity(row: Activity) -> str:
    of = f" of {_amount(row.total, row.unit)}" if row.total is not None else ""
    done = f"{_amount(row.done, row.unit)}{of}" if row.done or row.total else ""
    rate = f"{_amount(row.per_second, row.unit)}/s" if row.per_second and row.unit else ""
    left = f"{rough(row.eta_seconds)} left" if row.eta_seconds is not None else ""
    words = ", ".join(word for word in (done, rate, left) if word)
    bar = _bar(row.share, words) if row.share is not None else f"<small>{text(words)}</small>" if words else ""
    return f"<li>{text(row.words)} <small>for {rough(row.seconds)}</small>{bar}</li>"


def _amount(value: float, unit: str) -> str:
    return size(value) if unit == "bytes" else f"{value:,.0f} {unit}".rstrip()


def draw_collections(look: Look) -> str:
    """A row for each collection, those that are worked on and those that failed first."""
    view, unfinished = look.view, "not ended" if look.verdict.is_over else "in progress"
    order = {None: 0, "failed": 1, "partial": 2}
    rows = sorted(view.collections, key=lambda each: order.get(each.status, 3))
    cells = [
        [
            f"{text(row.name)}{f'<small>{text(row.error)}</small>' if row.error else ''}",
            text((row.status or unfinished).replace("_", " ")),
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
