"""The state of a run in Prometheus' text format: a pure function of a `RunView`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ultimate_embedder.report.live import CollectionRow, DeviceRow, Notice, PassRow, RunView
from ultimate_embedder.report.live.rows import RunStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "ultimate_embedder_"
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """A metric: its name without the prefix, and its samples; a value of None is left out."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: Iterable[tuple[Labels, float | None]]


def prometheus_text(view: RunView) -> str:
    """All metrics of a run, each family with its HELP and TYPE, as Prometheus scrapes them."""
    lines = [line for family in _families(view) for line in _lines(family)]
    return "".join(f"{line}\n" for line in lines)


def _families(view: RunView) -> Iterator[Family]:
    statuses = [({"status": status}, float(view.status == status)) for status in get_args(RunStatus)]
    yield Family("run_status", "gauge", "1 for the status that the run has.", statuses)
    yield Family("run_start_time_seconds", "gauge", "When the run began, in Unix time.", [({}, view.started_at)])
    yield Family("run_last_event_time_seconds", "gauge", "When the latest event was, in Unix time.", [({}, view.at)])
    yield Family("run_duration_seconds", "gauge", "How long the run has taken.", [({}, view.seconds)])
    yield Family("collections", "gauge", "Collections of the run.", [({}, view.collections_total)])
    yield Family("collections_done", "gauge", "Collections that have ended.", [({}, view.collections_done)])
    yield from _collections(view.collections)
    yield from _passes(view.passes)
    yield from _devices(view.devices)
    yield Family("mitigations_total", "counter", "Mitigations, by kind.", _counted(view.mitigations))
    warnings = sum(notice.times for notice in view.warnings)
    yield Family("warnings_total", "counter", "Warnings.", [({}, warnings)])


def _collections(rows: Iterable[CollectionRow]) -> Iterator[Family]:
    known = [({"collection": row.name}, row) for row in rows]
    for name, help, field in (
        ("collection_chunks", "Chunks of a collection.", "chunks"),
        ("collection_rejected", "Records of a collection that cannot be embedded.", "rejected"),
        ("collection_points", "Points of a collection that have all their vectors.", "points"),
    ):
        yield Family(name, "gauge", help, [(labels, getattr(row, field)) for labels, row in known])
    ended = [({**labels, "status": row.status}, 1.0) for labels, row in known if row.status is not None]
    yield Family("collection_status", "gauge", "1 for the status of a collection that has ended.", ended)


PASS_FAMILIES: tuple[tuple[str, Literal["counter", "gauge"], str, str], ...] = (
    ("pass_texts", "gauge", "Distinct texts of a pass.", "texts"),
    ("pass_texts_done", "gauge", "Texts of a pass that have a vector.", "done"),
    ("pass_texts_stored", "gauge", "Texts of a pass that had a vector when it began.", "stored"),
    ("pass_progress_ratio", "gauge", "How far a pass is, from 0 to 1.", "share"),
    ("pass_tokens_total", "counter", "Tokens that this run has encoded.", "tokens"),
    ("pass_tokens_per_second", "gauge", "Tokens per second.", "tokens_per_second"),
    ("pass_texts_per_second", "gauge", "Texts per second.", "texts_per_second"),
    ("pass_eta_seconds", "gauge", "Seconds until a pass is done, as it goes on now.", "eta_seconds"),
    ("pass_duration_seconds", "gauge", "Seconds since a pass began.", "seconds"),
    ("pass_batch_rows", "gauge", "Rows of the latest batch.", "batch_rows"),
    ("pass_batch_tokens", "gauge", "Tokens of the latest batch, with padding.", "batch_tokens"),
    ("pass_restarts_total", "counter", "How often a pass had to begin again.", "restarts"),
)
DEVICE_FAMILIES = (
    ("device_memory_used_bytes", "Memory in use, by this run and by others.", "held_bytes"),
    ("device_memory_ceiling_bytes", "The most memory that may be in use.", "ceiling_bytes"),
    ("device_memory_peak_bytes", "The most memory that was in use in this run.", "peak_bytes"),
    ("device_tokens_per_second", "Tokens per second over the last half minute.", "tokens_per_second"),
    ("device_idle_ratio", "Share of the last half minute without work, from 0 to 1.", "idle_share"),
)


def _passes(rows: Iterable[PassRow]) -> Iterator[Family]:
    known = [({"collection": row.collection, "model": row.model, "pass": f"{row.number}"}, row) for row in rows]
    for name, kind, help, field in PASS_FAMILIES:
        yield Family(name, kind, help, [(labels, getattr(row, field)) for labels, row in known])


def _devices(rows: Iterable[DeviceRow]) -> Iterator[Family]:
    known = [({"device": row.name}, row) for row in rows]
    for name, help, field in DEVICE_FAMILIES:
        yield Family(name, "gauge", help, [(labels, getattr(row, field)) for labels, row in known])
    lost = [(labels, float(row.lost is not None)) for labels, row in known]
    yield Family("device_lost", "gauge", "1 for a device that is not used any more.", lost)


def _counted(notices: Iterable[Notice]) -> list[tuple[Labels, float]]:
    """Sums by kind: those of one kind differ in words, collection, model and device."""
    sums: Counter[str] = Counter()
    for notice in notices:
        sums[notice.kind] += notice.times
    return [({"kind": kind}, float(count)) for kind, count in sums.items()]


def _lines(family: Family) -> Iterator[str]:
    samples = {_labels(labels): value for labels, value in family.samples if value is not None}
    if not samples:
        return
    name = f"{PREFIX}{family.name}"
    yield f"# HELP {name} {_escaped(family.help)}"
    yield f"# TYPE {name} {family.kind}"
    yield from (f"{name}{labels} {_number(value)}" for labels, value in samples.items())


def _labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value) if isinstance(value, int) or value != int(value) else f"{int(value)}"
