"""The timeline: what the host did, then each device with its leases, passes, memory and mitigations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ultimate_embedder.execution import MITIGATIONS
from ultimate_embedder.report.html.charts import draw_pace
from ultimate_embedder.report.html.curves import HOST, SLICES, Curves, Lane, Span
from ultimate_embedder.report.html.svg import HEADROOM, Scale, dots, level, plot, steps, time_axis
from ultimate_embedder.report.html.words import marked, share, size, table, text
from ultimate_embedder.report.rejections import reason_key
from ultimate_embedder.summary import DeviceSummary, RunSummary
from ultimate_embedder.types import by_node, is_cpu, node_of

SENTENCES = {mitigation.kind: mitigation.sentence for mitigation in MITIGATIONS}
SLOTS = 48  # of the width: marks that are closer would cover each other
MOST_GROUPS = 60
MOST_TOLD = 6  # reasons in the words of one mark
NARROW = 1 / 25  # of the width: a bar has no room for a name
GOOD = frozenset(["adaptive_batch_grow", "weights_back"])
KEY = (
    ("━", "", "lease: the model holds the device"),
    ("▬", "", "pass: it encodes"),
    ("■", "", "memory in use"),
    ("•", "", "peak of a batch"),
    ("╌", "bad", "ceiling"),
    ("▲", "", "larger batches again"),
    ("▼", "", "less memory used"),
    ("◆", "bad", "out of memory or device lost, and what was done"),
)

PACE_KEY = ("▟", "", "below: tokens per second")


@dataclass(frozen=True)
class Step:
    """A mitigation, in seconds from the start."""

    at: float
    kind: str
    device: str
    model: str
    reason: str
    rows: tuple[int, int] | None = None
    """Of a batch before and after, at the same length."""
    times: int = 1
    until: float = 0.0

    @property
    def mark(self) -> tuple[str, str]:
        """A sign that needs no colour, and its class."""
        if self.kind in GOOD:
            return "▲", ""
        return ("◆", "bad") if "oom" in self.kind or "lost" in self.kind or "left" in self.kind else ("▼", "")


def draw_timeline(summary: RunSummary, events: Curves | None, hues: Mapping[str, str]) -> str:
    """All lanes on one axis, and the list of mitigations; nothing if events are missing and nothing was done."""
    found = [each for collection in summary.collections for each in collection.mitigations]
    start = events.start if events else None
    taken = [make_step(each.type, each.timestamp, each.details, start, each.times, each.until) for each in found]
    heads = {each.device: _head(each, f"devices.{index}") for index, each in enumerate(summary.devices)}
    drawn = draw_lanes(events, hues, taken, heads) if events is not None else ""
    return drawn + _list(taken) if drawn or taken else ""


def draw_lanes(
    events: Curves,
    hues: Mapping[str, str],
    taken: list[Step],
    heads: Mapping[str, str] | None = None,
    *,
    speed: bool = False,
) -> str:
    """The host, then each device with its leases, passes, memory and mitigations; with `speed`, its throughput too.

    `heads` are words about devices, as HTML.
    """
    if not events.lanes:
        return ""
    devices = {name: events.lanes[name] for name in sorted(events.lanes, key=by_node) if name != HOST}
    # all cards on one scale; the memory of the machine is so much more that nothing would be seen of theirs
    cards = max((_top(lane) for name, lane in devices.items() if not is_cpu(name)), default=1.0)
    host = _rows(events.lanes[HOST], events, {}) if HOST in events.lanes else ""
    drawn = f'<div class="lane"><h3>host</h3>{host}</div>' if host else ""
    fastest = max((max(lane.tokens_in) for lane in devices.values()), default=0.0) if speed else 0.0
    for name, lane in devices.items():
        paced = draw_pace(name, lane.tokens_in, events, fastest) if speed and any(lane.tokens_in) else ""
        top = (cards if not is_cpu(name) else _top(lane)) * HEADROOM * HEADROOM
        memory = _lane(name, lane, events, hues, taken, top, (heads or {}).get(name))
        drawn += f'<div class="lane">{memory}{paced}</div>'
    keys = (*KEY, PACE_KEY) if speed else KEY
    return f'<p class="legend">{"".join(_key(*each) for each in keys)}</p>{drawn}{time_axis(events.axis_seconds)}'


def _key(sign: str, kind: str, words: str) -> str:
    return f'<span><i class="{kind}" aria-hidden="true">{sign}</i> {words}</span>'


def make_step(
    kind: str,
    timestamp: float,
    details: Mapping[str, Any],
    start: float | None,
    times: int = 1,
    until: float | None = None,
) -> Step:
    """A mitigation as it is drawn, or several alike, the last at `until`; without a `start` at the beginning."""
    device, model = (str(details.get(name) or "") for name in ("device", "model"))
    if not device and isinstance(details.get("after"), str):  # where a companion was placed
        device = details["after"]
    reason = str(details.get("reason") or "")
    at, last = (0.0 if start is None else max(0.0, moment - start) for moment in (timestamp, until or timestamp))
    return Step(at, kind, device, model, reason, _rows_changed(details), times, last)


def _rows_changed(details: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows before and after, as the kinds of mitigations tell them."""
    before, after = details.get("before"), details.get("after")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        pair = (before.get("rows"), after.get("rows"))
    elif "rows_after" in details:
        pair = (details.get("rows"), details["rows_after"])
    else:
        pair = (details.get("rows_before"), details.get("rows"))
    return (pair[0], pair[1]) if isinstance(pair[0], int) and isinstance(pair[1], int) else None


def _head(device: DeviceSummary, key: str) -> str:
    """Peak and ceiling of a device, what set the ceiling, and how long it computed."""
    words = f"peak {marked(size(device.peak_bytes), device.peak_bytes, f'{key}.peak_bytes')}"
    if is_cpu(device.device):
        return words
    part = device.peak_bytes / device.ceiling_bytes if device.ceiling_bytes else 0.0
    ceiling = marked(size(device.ceiling_bytes), device.ceiling_bytes, f"{key}.ceiling_bytes")
    total = marked(size(device.total_bytes), device.total_bytes, f"{key}.total_bytes")
    because = f", which was set by: {text(device.ceiling_reason)}" if device.ceiling_reason else ""
    words += f", {share(part)} of the ceiling of {ceiling}{because}; total {total}"
    busy = device.forward_seconds / device.leased_seconds if device.leased_seconds else 0.0
    return words + (f"; computed {share(min(1.0, busy))} of the time that models had it" if busy else "")


def _top(lane: Lane) -> float:
    return max([1, *lane.ceiling_bytes.values(), *lane.held_bytes.values(), *lane.peak_bytes.values()])


def _lane(
    name: str,
    lane: Lane,
    events: Curves,
    hues: Mapping[str, str],
    taken: list[Step],
    top: float,
    head: str | None,
) -> str:
    scale = Scale(events.axis_seconds, top)
    ceiling, peak = max(lane.ceiling_bytes.values(), default=0), max(lane.peak_bytes.values(), default=0)
    limit = "memory" if is_cpu(name) else "ceiling"
    words = f"peak {size(peak)}" + (f", {share(peak / ceiling)} of the {limit} of {size(ceiling)}" if ceiling else "")
    shapes = (
        steps(_moments(lane.held_bytes, events), scale, "area")
        + level(_moments(lane.ceiling_bytes, events), scale, limit)
        + dots(_moments(lane.peak_bytes, events), scale, "dot")
    )
    sides = {0.0: "0", **({float(ceiling): size(ceiling)} if ceiling else {})}
    marks = _marks([step for step in taken if step.device in (name, node_of(name))], events.axis_seconds)
    word = f'<em class="{limit}" style="bottom:{min(1.0, ceiling / top):.2%}">{limit}</em>' if ceiling else ""
    memory = plot(shapes, f"Memory of {name} over time: {words}", scale, sides, 96, word + marks)
    return f"<h3>{text(name)} <small>{head or words}</small></h3>{_rows(lane, events, hues)}{memory}"


def _moments(values: Mapping[int, int], events: Curves) -> list[tuple[float, float]]:
    return [(place / SLICES * events.seconds, value) for place, value in sorted(values.items())]


def _rows(lane: Lane, events: Curves, hues: Mapping[str, str]) -> str:
    """A row of bars for each model, with its leases as a line above its passes."""
    rows = ""
    for row in dict.fromkeys([*lane.leases, *lane.passes]):
        bars = "".join(_bar("lease", row, span, events) for span in lane.leases.get(row, ()))
        bars += "".join(_bar("pass", row, span, events) for span in lane.passes.get(row, ()))
        side = "" if row in hues else f"<b>{text(row)}</b>"
        rows += f'<div class="bars {hues.get(row, "host")}">{side}{bars}</div>'
    return rows


def _bar(kind: str, row: str, span: Span, events: Curves) -> str:
    what = f"{span.merged:,} times" if span.merged > 1 else span.label
    tip = f"{row}, {kind} ({what}): {span.begin:.1f} s to {span.end:.1f} s{'' if span.ended else ', not finished'}"
    width = (span.end - span.begin) / events.axis_seconds
    words = text(f"{row} · {what}") if kind == "pass" and width > NARROW else ""
    begin = f"min({span.begin / events.axis_seconds:.2%},100% - 2px)"  # no bar is narrower than 2 px
    place = f"left:{begin};width:{width:.2%}"
    return f'<span class="{kind}" style="{place}" title="{text(tip)}">{words}</span>'


def _marks(taken: Iterable[Step], seconds: float) -> str:
    slots: dict[int, list[Step]] = {}
    for step in taken:
        slots.setdefault(int(min(step.at, seconds) / seconds * SLOTS), []).append(step)
    marks = ""
    for near in slots.values():
        worst = max(near, key=lambda step: step.mark[1])
        told = [
            f"{step.at:.1f} s: {step.kind}{f' x {step.times:,}' if step.times > 1 else ''}, {step.model}: "
            f"{step.reason or SENTENCES.get(step.kind, '')}"
            for step in near[:MOST_TOLD]
        ]
        tip = "; ".join([*told, *([f"and {len(near) - MOST_TOLD:,} more"] if len(near) > MOST_TOLD else [])])
        sign, kind = worst.mark
        place = f"left:{min(worst.at, seconds) / seconds:.2%}"
        marks += f'<i class="{kind}" style="{place}" title="{text(tip)}">{sign}</i>'
    return f'<div class="marks">{marks}</div>' if marks else ""


def _list(taken: list[Step]) -> str:
    total = sum(step.times for step in taken)
    if not total:
        return "<p>No mitigation was needed.</p>"
    groups: dict[tuple[str, str, str, str], list[Step]] = {}
    for step in taken:
        groups.setdefault((step.kind, step.device, step.model, reason_key(step.reason)), []).append(step)
    shown = sorted(groups.values(), key=lambda steps_: -sum(step.times for step in steps_))
    rows = []
    for steps_ in shown[:MOST_GROUPS]:
        first, (sign, style) = steps_[0], steps_[0].mark
        begin, end = min(step.at for step in steps_), max(step.until for step in steps_)
        what = f'<i class="{style}" aria-hidden="true">{sign}</i> {text(SENTENCES.get(first.kind, first.kind))}'
        why = f"{first.kind}: {first.reason}" if first.reason else first.kind
        rows.append(
            [
                f"{what}<small>{text(why)}</small>",
                f"{text(first.device)}<small>{text(first.model)}</small>",
                _in_rows(steps_),
                f"{sum(step.times for step in steps_):,}",
                f"{begin:.1f}" + (f" … {end:.1f}" if end > begin else ""),
            ]
        )
    heading = f"<h3>Mitigations: {marked(f'{total:,}', total, 'collections.*.mitigations.*.times')}</h3>"
    rest = sum(step.times for steps_ in shown[MOST_GROUPS:] for step in steps_)
    more = f"<p>And {rest:,} others; summary.json lists them.</p>" if rest else ""
    return heading + table(["what was done, and why (the first)", "where", "#rows", "#times", "#at, s"], rows) + more


def _in_rows(steps_: Sequence[Step]) -> str:
    """What the largest change did to a batch."""
    changes = [step.rows for step in steps_ if step.rows is not None and step.rows[0] != step.rows[1]]
    largest = max(changes, key=lambda pair: abs(pair[0] - pair[1]), default=None)
    return f"{largest[0]:,} → {largest[1]:,}" if largest else ""
