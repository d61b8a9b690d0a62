"""The rows of a live view: plain values, ready for a terminal, a page or JSON. All text in them is printable."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

RunStatus = Literal["waiting", "running", "finished", "stopped", "failed"]
NodeState = Literal["at work", "lost", "refused"]
PassState = Literal["waiting", "running", "finished"]


@dataclass(frozen=True)
class DeviceRow:
    """One device: its memory, and what it does."""

    name: str
    held_bytes: int | None
    """Memory in use, by this run and by others; None before it was read."""
    ceiling_bytes: int | None
    """The most that may be in use; the memory of the machine for the CPU."""
    ceiling_reason: str | None
    """Why not more of it may be used."""
    peak_bytes: int | None
    """The most that was in use in this run."""
    tokens_per_second: float
    """Over the last half minute."""
    idle_share: float | None
    """Of the last half minute: from 0 to 1; None before it had anything to do."""
    models: tuple[str, ...]
    """Those that have leased it."""
    lost: str | None
    """Why it is not used any more."""


@dataclass(frozen=True)
class NodeRow:
    """One node of a cluster; what it computes is told by its devices, whose names begin with that of the node."""

    name: str
    state: NodeState = "at work"
    why: str | None = None
    """Why it is lost or was refused."""
    address: str = ""
    host: str = ""
    devices: tuple[str, ...] = ()
    """What they are, as their makers call them."""
    cores: int = 0
    dtype: str = ""
    lost: int = 0
    """How often its process was lost."""


@dataclass(frozen=True)
class PassRow:
    """One model over one collection."""

    collection: str
    model: str
    number: int
    state: PassState
    devices: tuple[str, ...]
    dtype: str
    texts: int
    """Distinct texts of the collection."""
    done: int
    """Of these, those that have a vector; fewer than before where the pass had to begin again."""
    stored: int
    """Of these, those that had one when the pass began."""
    share: float
    """How far it is, from 0 to 1. Never goes back: where work has to be done again, the rest counts for less."""
    tokens: int
    """Encoded in this run."""
    tokens_per_second: float
    texts_per_second: float
    eta_seconds: float | None
    batch_rows: int
    """Of the latest batch; the most that was planned for it is `planned_rows`."""
    planned_rows: int
    batch_tokens: int
    restarts: int
    """How often it had to begin again, with another precision or on other devices."""
    seconds: float
    """Since it began."""


@dataclass(frozen=True)
class Activity:
    """Something that is under way: reading, downloading, loading, exporting, building a graph, uploading."""

    kind: str
    words: str
    """What it is, in words: `docs: writing parquet`."""
    unit: str
    done: int
    before: int
    """Of it, what was done before it began, by an upload that was interrupted."""
    total: int | None
    """None if it is not known how much there is."""
    share: float | None
    """From 0 to 1; never goes back."""
    per_second: float
    eta_seconds: float | None
    seconds: float
    collection: str | None = None


@dataclass(frozen=True)
class Notice:
    """A mitigation or a warning; the same one again is counted, not listed again."""

    at: float
    kind: str
    """The kind of a mitigation, or `warning`."""
    words: str
    collection: str | None
    model: str | None = None
    device: str | None = None
    times: int = 1
    last_at: float = 0.0


@dataclass(frozen=True)
class LeaseRow:
    """A model that has exclusive use of devices."""

    collection: str | None
    model: str
    devices: tuple[str, ...]
    since: float


@dataclass(frozen=True)
class CollectionRow:
    """A collection: `status` is None while it is worked on."""

    name: str
    status: str | None
    chunks: int
    rejected: int
    points: int
    error: str | None


@dataclass(frozen=True)
class RunView:
    """A run at one moment. `left_out` counts rows beyond the limits of the lists."""

    status: RunStatus
    error: str | None
    started_at: float | None
    at: float | None
    """Of the latest event."""
    seconds: float
    chunks: str
    output: str
    command: tuple[str, ...]
    collections_total: int | None
    collections_done: int
    collections: tuple[CollectionRow, ...]
    devices: tuple[DeviceRow, ...]
    nodes: tuple[NodeRow, ...]
    passes: tuple[PassRow, ...]
    activities: tuple[Activity, ...]
    mitigations: tuple[Notice, ...]
    warnings: tuple[Notice, ...]
    leases: tuple[LeaseRow, ...]
    left_out: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """The view as plain JSON data."""
        return dataclasses.asdict(self)
