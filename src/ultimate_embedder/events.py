"""What happens during a run, as it happens.

The parts emit events and keep no statistics; progress, summary and `events.jsonl` are made of events alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ultimate_embedder.config import RunConfig
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.types import ExportedFile, MemorySnapshot, Rejected, RepeatedId, Status, VectorSpec


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events; `collection` is None for what concerns the whole run."""

    collection: str | None = None
    timestamp: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        """The event as plain JSON data, its name first."""
        return {"event": type(self).__name__, **dataclasses.asdict(self, dict_factory=_json_dict)}


Emit = Callable[[Event], None]
AnyEvent = TypeVar("AnyEvent", bound=Event)


def repeated(event: AnyEvent) -> AnyEvent:
    """The same event, told now: of what an earlier run did and this one profits from."""
    return dataclasses.replace(event, timestamp=time.time())


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """Options are resolved and nothing is wrong with them."""

    options: RunConfig
    chunks: str
    output: str


@dataclass(frozen=True, kw_only=True)
class CollectionStarted(Event):
    """A collection's files are about to be read."""

    files: int


@dataclass(frozen=True, kw_only=True)
class ChunkRejected(Event):
    """A record cannot be embedded."""

    rejected: Rejected


@dataclass(frozen=True, kw_only=True)
class IdRepeated(Event):
    """Two chunks of a collection share an id; the later one got another."""

    repeated: RepeatedId


@dataclass(frozen=True, kw_only=True)
class ChunksLoaded(Event):
    """All files of a collection are read: found = loaded + rejected."""

    found: int
    loaded: int
    rejected: int
    distinct_texts: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ModelResolved(Event):
    """A model's files are found on this machine."""

    model: str
    hub_id: str | None
    source: str
    path: str
    revision: str
    digest: str
    size_bytes: int
    retries: int
    note: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ModelMissing(Event):
    """A companion cannot be had, and the user said that it may be missing; the others weigh more."""

    model: str
    why: str


@dataclass(frozen=True, kw_only=True)
class ModelFetchStarted(Event):
    """Files of a model are about to be fetched from the hub."""

    model: str
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelBytesFetched(Event):
    """Some more of a model has arrived."""

    model: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelLoaded(Event):
    """A model is in memory, ready to encode."""

    model: str
    dtype: str
    dim: int
    max_tokens: int
    document_prompt: str
    tokenizer: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ModeChosen(Event):
    """How the models of a collection share the devices, and why so."""

    mode: str
    why: str
    fusion: str
    weights: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class LeaseAcquired(Event):
    """A model has devices to itself; `memory` is of the moment before it moves in.

    `saved_bytes` and `saved_seconds`: what did not have to be moved because the model had stayed there.
    """

    model: str
    devices: list[str]
    memory: list[MemorySnapshot]
    waited_seconds: float
    evicted: list[str]
    saved_bytes: int
    saved_seconds: float


@dataclass(frozen=True, kw_only=True)
class LeaseReleased(Event):
    """A model has given its devices back; `memory` is of the moment after it has left.

    `placement` tells how it was there; `kept_bytes` stay on the devices for the next time; `leftovers` should have
    gone with it, and have not.
    """

    model: str
    devices: list[str]
    memory: list[MemorySnapshot]
    placement: str
    kept_bytes: int
    leftovers: list[str]
    moving_seconds: float


@dataclass(frozen=True, kw_only=True)
class ModelEvicted(Event):
    """A model that was kept on devices between passes had to leave."""

    model: str
    devices: list[str]
    why: str
    leftovers: list[str]


@dataclass(frozen=True, kw_only=True)
class TurnFinished(Event):
    """Every model has had its turn at so many texts; moving weights took this share of the time."""

    texts: int
    moving_share: float


@dataclass(frozen=True, kw_only=True)
class PassStarted(Event):
    """One model is about to go over one collection; `stored_texts` of its texts have vectors already."""

    model: str
    model_pass: int
    weight: float
    devices: list[str]
    dtype: str
    fingerprint: str
    texts: int
    stored_texts: int
    max_tokens: int | None = None
    """Of the encoder, as is the prompt; None where the model is not loaded and its store does not say."""
    document_prompt: str | None = None


@dataclass(frozen=True, kw_only=True)
class WindowTokenized(Event):
    """The tokeniser, running ahead, has finished a window."""

    model: str
    model_pass: int
    texts: int
    tokens: int
    truncated: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BatchEncoded(Event):
    """A batch is done, checked and handed to the store.

    `predicted_bytes` and `measured_bytes` are of the activations at their peak; 0 where nothing was predicted, or
    where the batch was not run whole. `packed`: without padding. `fp32_rows` had to be computed again in fp32.
    """

    model: str
    model_pass: int
    batch_index: int
    device: str
    rows: int
    tokens: int
    padded_tokens: int
    longest: int
    bad_rows: int
    packed: bool
    fp32_rows: int
    predicted_bytes: int
    measured_bytes: int
    wait_seconds: float
    forward_seconds: float
    memory_before: MemorySnapshot
    memory: MemorySnapshot


@dataclass(frozen=True, kw_only=True)
class PrecisionChecked(Event):
    """What a low precision costs: some texts of the collection against their vectors in fp32."""

    model: str
    model_pass: int
    dtype: str
    texts: int
    mean_cosine: float
    worst_cosine: float
    seconds: float
    """Next to nothing where an earlier run had compared them."""


@dataclass(frozen=True, kw_only=True)
class PassFinished(Event):
    """The pass is over: `stored_chunks` have their vector from this model on disk; all, unless it was stopped.

    `rows` were encoded now; `batch_rows` of them at once, at most, over all `devices` together.
    """

    model: str
    model_pass: int
    weight: float
    devices: list[str]
    rows: int
    batch_rows: int
    dim: int
    stored_chunks: int
    truncated: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class VectorsFused(Event):
    """Every model has done its part: so many chunks have these vectors."""

    points: int
    vectors: tuple[VectorSpec, ...]


@dataclass(frozen=True, kw_only=True)
class ExportStarted(Event):
    """An export is about to be written."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class ExportWritten(Event):
    """An export is on disk under its final name."""

    exported: ExportedFile
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CompanionPlaced(Event):
    """A companion was given a device before it began; `kind` as in `execution.MITIGATIONS`."""

    kind: str
    model: str
    device: str
    primary_device: str

    @property
    def details(self) -> dict[str, Any]:
        """What happened, as mitigations tell it."""
        return {"model": self.model, "before": self.primary_device, "after": self.device}


@dataclass(frozen=True, kw_only=True)
class Mitigated(Event):
    """A recorded decision to change course; `execution.MITIGATIONS` lists the kinds."""

    kind: str
    details: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """Something the user should know; the run goes on."""

    message: str


@dataclass(frozen=True, kw_only=True)
class CollectionSkipped(Event):
    """A collection has its exports from an earlier run, whose counts these are, and is not read again."""

    found: int
    embedded: int
    rejected: int
    distinct_texts: int
    vectors: tuple[VectorSpec, ...]
    exports: tuple[ExportedFile, ...]
    target: str | None


@dataclass(frozen=True, kw_only=True)
class CollectionFinished(Event):
    """A collection has reached its final status."""

    status: Status
    target_qdrant_collection: str | None = None
    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The last event; `error` is set when the run could not be carried out, or found nothing to embed."""

    error: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class UploadStarted(Event):
    """Points are about to be sent; `uploaded` of them were sent by an earlier, interrupted upload."""

    target: str
    points: int
    uploaded: int
    created: bool


@dataclass(frozen=True, kw_only=True)
class BatchUploaded(Event):
    """The server has taken a batch of points."""

    target: str
    points: int


@dataclass(frozen=True, kw_only=True)
class Retried(Event):
    """A call failed in a way that may pass, and will be tried again."""

    what: str
    attempt: int
    wait_seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class UploadFinished(Event):
    """The server holds every point; `counted` is its own word for it."""

    target: str
    counted: int
    seconds: float


def fan_out(sinks: list[Emit]) -> Emit:
    """Make one `emit` that hands each event to every sink, in order; may be called from any thread."""
    lock = OrderedLock("emit", Rank.EMIT)

    def emit(event: Event) -> None:
        with lock:
            for sink in sinks:
                sink(event)

    return emit


def _json_dict(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in items}
