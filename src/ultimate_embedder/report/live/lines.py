"""A view as lines of text: one for each device, for each pass, and for what is under way."""

from __future__ import annotations

from collections.abc import Sequence

from ultimate_embedder.report.html.words import duration, size
from ultimate_embedder.report.live.layout import BLOCKS, Bars, Cell, Column, Line, lay_out
from ultimate_embedder.report.live.rows import Activity, DeviceRow, NodeRow, PassRow, RunView
from ultimate_embedder.report.live.sentences import devices_in_words
from ultimate_embedder.terminal import counted
from ultimate_embedder.types import by_node, node_of

NARROW = 90  # columns: below that a pass has two lines
CLOSE = 0.9  # to the ceiling
MOST_ROWS = 16  # of a kind; machines have eight cards, ensembles three models
SPINNER = "|/-\\"

DEVICE_COLUMNS = (Column(), Column(4), Column(), Column(2, right=True), Column(1, right=True), Column(5))
PASS_COLUMNS = (
    Column(),
    Column(),
    Column(right=True),
    Column(1, right=True),
    Column(3, right=True),
    Column(4),
    Column(2),
)
NODE_COLUMNS = (Column(), Column(3), Column(2, right=True), Column(1, right=True))
WORK_COLUMNS = (Column(), Column(3), Column(1, right=True), Column(2, right=True), Column(1))


def run_lines(view: RunView, width: int, bars: Bars = BLOCKS, most: int | None = None) -> list[Line]:
    """What a terminal shows of a run that is going on; at most `most` lines."""
    lines = [*heading(view), *machine_lines(view, width, bars)]
    current = [each for each in view.passes if _is_current(each, view)]
    lines += [*pass_lines(current, width, bars), *work_lines(view.activities, width, bars, view.seconds)]
    if most is not None and len(lines) > most:
        hidden = len(lines) - most + 1
        lines = [*lines[: max(0, most - 1)], ((f"… {counted(hidden, 'line')} more", "dim"),)]
    return lines


def heading(view: RunView) -> list[Line]:
    """The collection that is worked on, and for how long the run has gone on."""
    at_work = [each.name for each in view.collections if each.status is None]
    if not at_work:
        return []
    number = view.collections_done + 1
    total = view.collections_total or 0
    of_all = f" · collection {number:,} of {total:,}" if total > 1 and number <= total else ""
    return [((at_work[-1], "bold"), (f"{of_all} · {rough(view.seconds)}", ""))]


def device_lines(devices: Sequence[DeviceRow], width: int, bars: Bars = BLOCKS) -> list[Line]:
    """Memory against the ceiling, tokens per second, and the share of time without work."""
    return _limited([_device(each, _unit(width)) for each in devices], DEVICE_COLUMNS, width, bars, "device")


def machine_lines(view: RunView, width: int, bars: Bars = BLOCKS) -> list[Line]:
    """A line for each device; of a cluster with very many, one for each node. Nodes that do not work say why."""
    absent = [[Cell(row.name), Cell(f"{row.state}: {row.why}", "red")] for row in view.nodes if row.state != "at work"]
    lines = lay_out(absent[:MOST_ROWS], (Column(), Column()), width, bars) + _more(len(absent) - MOST_ROWS, "node")
    gone = {row.name for row in view.nodes if row.state != "at work"}
    devices = sorted(
        (each for each in view.devices if node_of(each.name) not in gone), key=lambda row: by_node(row.name)
    )
    if len(devices) <= MOST_ROWS or not view.nodes:
        return device_lines(devices, width, bars) + lines
    at_work = [row for row in view.nodes if row.name not in gone]
    rows = [_node(row, [each for each in devices if node_of(each.name) == row.name], _unit(width)) for row in at_work]
    return _limited(rows, NODE_COLUMNS, width, bars, "node") + lines


def pass_lines(passes: Sequence[PassRow], width: int, bars: Bars = BLOCKS) -> list[Line]:
    """How far each pass is, its tokens per second, batch and time left."""
    if width >= NARROW:
        return _limited([_pass(each, _unit(width)) for each in passes], PASS_COLUMNS, width, bars, "model")
    lines: list[Line] = []
    for each in passes[:MOST_ROWS]:
        name, *cells = _pass(each, _unit(width))
        lines += lay_out([[name]], [Column()], width, bars)
        if each.state != "waiting":
            lines += lay_out([[Cell(" "), *cells]], PASS_COLUMNS, width, bars)
    return lines + _more(len(passes) - MOST_ROWS, "model")


def work_lines(work: Sequence[Activity], width: int, bars: Bars = BLOCKS, seconds: float = 0.0) -> list[Line]:
    """What else is under way, and how far it is; something moves where that is not known."""
    spinner = SPINNER[int(seconds * 4) % len(SPINNER)]
    return _limited([_work(each, spinner) for each in work], WORK_COLUMNS, width, bars, "task")


def _limited(
    rows: Sequence[Sequence[Cell]], columns: Sequence[Column], width: int, bars: Bars, what: str
) -> list[Line]:
    return lay_out(rows[:MOST_ROWS], columns, width, bars) + _more(len(rows) - MOST_ROWS, what)


def _unit(width: int) -> str:
    return "tokens/s" if width >= NARROW else "tok/s"


def _more(hidden: int, what: str) -> list[Line]:
    return [((f"… {counted(hidden, what)} more", "dim"),)] if hidden > 0 else []


def _is_current(row: PassRow, view: RunView) -> bool:
    at_work = {each.name for each in view.collections if each.status is None}
    return row.collection in at_work or (not view.collections and row.state == "running")


def _device(device: DeviceRow, unit: str) -> list[Cell]:
    if device.lost is not None:
        return [Cell(device.name), Cell(), Cell("lost", "red"), Cell(), Cell(), Cell()]  # a warning says why
    held, ceiling = device.held_bytes, device.ceiling_bytes
    share = min(1.0, held / ceiling) if held is not None and ceiling else None
    style = "red" if share is not None and share >= 1 else "yellow" if share is not None and share > CLOSE else "green"
    return [
        Cell(device.name),
        Cell(style=style, share=share),
        Cell(memory_words(held, ceiling) if held is not None and ceiling else ""),
        Cell(f"{device.tokens_per_second:,.0f} {unit}"),
        Cell("" if device.idle_share is None else f"idle {percent(device.idle_share)}"),
        Cell(", ".join(device.models), "dim"),
    ]


def _node(node: NodeRow, devices: Sequence[DeviceRow], unit: str) -> list[Cell]:
    idle = [each.idle_share for each in devices if each.idle_share is not None]
    return [
        Cell(node.name),
        Cell(counted(len(devices), "device")),
        Cell(f"{sum(each.tokens_per_second for each in devices):,.0f} {unit}"),
        Cell(f"idle {percent(sum(idle) / len(idle))}" if idle else ""),
    ]


def _pass(row: PassRow, unit: str) -> list[Cell]:
    if row.state == "waiting":
        return [Cell(f"{row.model}, waiting", "dim"), Cell(), Cell(), Cell(), Cell(), Cell(), Cell()]
    name = Cell(f"{row.model} on {devices_in_words(row.devices)}")
    again = f", begun again in {row.dtype}" if row.restarts else ""
    batch = f"batch {row.batch_rows:,}" + (f" of {row.planned_rows:,}" if row.planned_rows > row.batch_rows else "")
    return [
        name,
        Cell(style="green", share=row.share),
        Cell(percent(row.share)),
        Cell(f"{row.done:,} of {row.texts:,} texts{again}"),
        Cell(f"{row.tokens_per_second:,.0f} {unit}"),
        Cell(batch if row.batch_rows and row.state == "running" and row.share < 1 else ""),
        Cell(_time(row), "cyan"),
    ]


def _time(row: PassRow) -> str:
    if row.state == "finished":
        return f"done in {rough(row.seconds)}" if row.share >= 1 else f"ended after {rough(row.seconds)}"
    if row.share >= 1:
        return "done"
    if row.eta_seconds is not None:
        return f"ETA {rough(row.eta_seconds)}"
    return "" if row.tokens else "no batch yet"


def _work(work: Activity, spinner: str) -> list[Cell]:
    if work.share is None:
        done = f"{amount(work.done, work.unit)} so far" if work.done else ""
        return [Cell(f"{work.words} {spinner}"), Cell(), Cell(), Cell(done), Cell(rough(work.seconds), "cyan")]
    return [
        Cell(work.words),
        Cell(style="green", share=work.share),
        Cell(percent(work.share)),
        Cell(done_of_all(work)),
        Cell(f"ETA {rough(work.eta_seconds)}" if work.eta_seconds is not None else "", "cyan"),
    ]


def done_of_all(work: Activity) -> str:
    """`40 of 100 points`, `12.0 MB of 91.6 MB`."""
    done = amount(work.done, work.unit) if work.unit == "bytes" else f"{work.done:,}"
    return f"{done} of {amount(work.total or 0, work.unit)}"


def memory_words(held: int, ceiling: int) -> str:
    """`2.1 of 12.0 GB`."""
    unit = size(ceiling).rpartition(" ")[2]
    return f"{size(held).removesuffix(f' {unit}')} of {size(ceiling)}"


def amount(number: int, unit: str) -> str:
    """`1,204 points`, `91.6 MB`."""
    return size(number) if unit == "bytes" else f"{number:,} {unit}".rstrip()


def percent(share: float) -> str:
    """Not 100 % before the end."""
    return f"{int(share * 100 + 1e-9)} %"


def rough(seconds: float) -> str:
    """A time that is going on, or an estimate: `24 s`, `4 min 05 s`, `2 h 03 min`."""
    return f"{seconds:.0f} s" if seconds < 59.5 else duration(max(60.0, seconds))
