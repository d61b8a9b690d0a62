"""The timeline: what the host did, then each device with its leases, passes, memory and mitigations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ultimate_embedder.execution import MITIGATIONS
from ultimate_embedder.report.html.charts import draw_pace
from ultimate_embedder.report.html.curves import CPU, HOST, SLICES, Curves, Lane, Span
from ultimate_embedder.report.html.svg import HEADROOM, Scale, dots, level, plot, steps, time_axis
from ultimate_embedder.report.html.words import marked, share, size, table, text
from ultimate_embedder.summary import RunSummary

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

    @property
    def mark(self) -> tuple[str, str]:
        """A sign that needs no colour, and its class."""
        if self.kind in GOOD:
            return "▲", ""
        return ("◆", "bad") if "oom" in self.kind or "lost" in self.kind or "left" in self.kind else ("▼", "")


def draw_timeline(summary: RunSummary, events: Curves | None, hues: Mapping[str, str]) -> str:
    """All lanes on one axis, and the list of mitigations; nothing if events are missing and nothing was done."""
    found = [each for collection in summary.collections for each in collection.mitigations]
    taken = [make_step(each.type, each.timestamp, each.details, events.start if events else None) for each in found]
    drawn = draw_lanes(events, hues, taken) if events is not None else ""
    return drawn + _list(summary, taken) if drawn or taken else ""


def draw_lanes(events: Curves, hues: Mapping[str, str], taken: list[Step], *, speed: bool = False) -> str:
    """The host, then each device with its leases, passes, memory and mitigations; with `speed`, its throughput too."""
    if not events.lanes:
        return ""
    devices = {name: lane for name, lane in events.lanes.items() if name != HOST}
    top = max((_top(lane) for lane in devices.values()), default=1.0) * HEADROOM * HEADROOM
    host = _rows(events.lanes[HOST], events, {}) if HOST in events.lanes else ""
    drawn = f'<div class="lane"><h3>host</h3>{host}</div>' if host else ""
    fastest = max((max(lane.tokens_in) for lane in devices.values()), default=0.0) if speed else 0.0
    for name, lane in devices.items():
        paced = draw_pace(name, lane.tokens_in, events, fastest) if speed and any(lane.tokens_in) else ""
        drawn += f'<div class="lane">{_lane(name, lane, events, hues, taken, top)}{paced}</div>'
    keys = (*KEY, PACE_KEY) if speed else KEY
    return f'<p class="legend">{"".join(_key(*each) for each in keys)}</p>{drawn}{time_axis(events.axis_seconds)}'


def _key(sign: str, kind: str, words: str) -> str:
    return f'<span><i class="{kind}" aria-hidden="true">{sign}</i> {words}</span>'


def make_step(kind: str, timestamp: float, details: Mapping[str, Any], start: float | None) -> Step:
    """A mitigation as it is drawn; without a `start` it is at the beginning."""
    device, model = (str(details.get(name) or "") for name in ("device", "model"))
    if not device and isinstance(details.get("after"), str):  # where a companion was placed
        device = details["after"]
    at = 0.0 if start is None else max(0.0, timestamp - start)
    return Step(at, kind, device, model, str(details.get("reason") or ""))


def _top(lane: Lane) -> float:
    return max([1, *lane.ceiling_bytes.values(), *lane.held_bytes.values(), *lane.peak_bytes.values()])


def _lane(name: str, lane: Lane, events: Curves, hues: Mapping[str, str], taken: list[Step], top: float) -> str:
    scale = Scale(events.axis_seconds, top)
    ceiling, peak = max(lane.ceiling_bytes.values(), default=0), max(lane.peak_bytes.values(), default=0)
    limit = "memory" if name == CPU else "ceiling"
    words = f"peak {size(peak)}" + (f", {share(peak / ceiling)} of the {limit} of {size(ceiling)}" if ceiling else "")
    shapes = (
        steps(_moments(lane.held_bytes, events), scale, "area")
        + level(_moments(lane.ceiling_bytes, events), scale, limit)
        + dots(_moments(lane.peak_bytes, events), scale, "dot")
    )
    sides = {0.0: "0", **({float(ceiling): size(ceiling)} if ceiling else {})}
    marks = _marks([step for step in taken if step.device == name], events.axis_seconds)
    memory = plot(shapes, f"Memory of {name} over time: {words}", scale, sides, 96, marks)
    return f"<h3>{text(name)} <small>{words}</small></h3>{_rows(lane, events, hues)}{memory}"


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
    place = f"left:{span.begin / events.axis_seconds:.2%};width:{width:.2%}"
    return f'<span class="{kind}" style="{place}" title="{text(tip)}">{words}</span>'


def _marks(taken: Iterable[Step], seconds: float) -> str:
    slots: dict[int, list[Step]] = {}
    for step in taken:
        slots.setdefault(int(min(step.at, seconds) / seconds * SLOTS), []).append(step)
    marks = ""
    for near in slots.values():
        worst = max(near, key=lambda step: step.mark[1])
        told = [
            f"{step.at:.1f} s: {step.kind}, {step.model}: {step.reason or SENTENCES.get(step.kind, '')}"
            for step in near[:MOST_TOLD]
        ]
        tip = "; ".join([*told, *([f"and {len(near) - MOST_TOLD:,} more"] if len(near) > MOST_TOLD else [])])
        sign, kind = worst.mark
        place = f"left:{min(worst.at, seconds) / seconds:.2%}"
        marks += f'<i class="{kind}" style="{place}" title="{text(tip)}">{sign}</i>'
    return f'<div class="marks">{marks}</div>' if marks else ""


def _list(summary: RunSummary, taken: list[Step]) -> str:
    total = len(taken)
    if not total:
        return "<p>No mitigation was needed.</p>"
    groups: dict[tuple[str, str, str, str], list[Step]] = {}
    for step in taken:
        groups.setdefault((step.kind, step.device, step.model, step.reason), []).append(step)
    shown = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = []
    for (kind, device, model, reason), steps_ in shown[:MOST_GROUPS]:
        sign, style = steps_[0].mark
        times = [step.at for step in steps_]
        when = f"{min(times):.1f}" + (f" … {max(times):.1f}" if len(times) > 1 else "")
        what = f'<i class="{style}" aria-hidden="true">{sign}</i> {text(SENTENCES.get(kind, kind))}'
        rows.append(
            [
                f"{what}<small>{text(f'{kind}: {reason}' if reason else kind)}</small>",
                f"{text(device)}<small>{text(model)}</small>",
                f"{len(times):,}",
                when,
            ]
        )
    heading = f"<h3>Mitigations: {marked(f'{total:,}', total, 'collections.*.mitigations.#')}</h3>"
    rest = sum(len(steps_) for _, steps_ in shown[MOST_GROUPS:])
    more = f"<p>And {rest:,} others; summary.json lists all.</p>" if rest else ""
    return heading + table(["what was done, and why", "where", "#times", "#at, s"], rows) + more
