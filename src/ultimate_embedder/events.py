"""The events of a run.

The parts emit events and keep no statistics; progress, summary and `events.jsonl` are made from events alone.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ultimate_embedder.config import InMemory, RunConfig
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.terminal import valid_unicode
from ultimate_embedder.types import (
    DeviceFacts,
    DuplicateId,
    ExportedFile,
    FieldsUsed,
    HnswGraph,
    Lengths,
    MeasuredWay,
    MemorySnapshot,
    Rejected,
    RejectedGroup,
    SparseFacts,
    SplitCounts,
    Status,
    TruncatedText,
    VectorKind,
    VectorSpec,
)

if TYPE_CHECKING:  # --help imports this module: no pydantic
    from ultimate_embedder.summary import RunOptions

EVENTS_VERSION = 2
"""Of `events.jsonl`: raised where a reader of the version before would misunderstand a log."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events; `collection` is None for events of the run as a whole."""

    collection: str | None = None
    timestamp: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        """The event as plain JSON data, its name first."""
        return {"event": type(self).__name__, **dataclasses.asdict(self, dict_factory=_json_dict)}

    def as_line(self) -> bytes:
        """The event as a line of `events.jsonl`."""
        return json.dumps(self.as_dict(), ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


Emit = Callable[[Event], None]
AnyEvent = TypeVar("AnyEvent", bound=Event)


def repeated(event: AnyEvent) -> AnyEvent:
    """The same event with the current time: this run reuses what an earlier run of the session did."""
    return dataclasses.replace(event, timestamp=time.time())


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The options are resolved and valid."""

    options: RunConfig | RunOptions
    """Those of the summary in an event that was read from a log."""
    chunks: str
    output: str
    command: tuple[str, ...] = ()
    """The words of the command line, if the run was started there."""
    working_directory: str = ""
    """That relative paths of the command are of."""
    events_version: int = EVENTS_VERSION


@dataclass(frozen=True, kw_only=True)
class DeviceOpened(Event):
    """A device of the run: how much of it may be used, and why not more."""

    device: str
    total_bytes: int
    ceiling_bytes: int
    ceiling_reason: str
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class NodeJoined(Event):
    """A node of a cluster takes part from now on."""

    node: str
    node_id: str
    """What the cluster calls it."""
    address: str
    host: str
    devices: tuple[DeviceFacts, ...]
    cores: int
    dtype: str
    versions: dict[str, str]
    differs: tuple[str, ...] = ()
    """Versions of packages that may change the last digits of its vectors."""


@dataclass(frozen=True, kw_only=True)
class NodeRefused(Event):
    """A node may not take part."""

    node: str
    address: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class CollectionsFound(Event):
    """The collections of the run are known, and are about to be embedded one by one."""

    collections: int


@dataclass(frozen=True, kw_only=True)
class DevicesOpened(Event):
    """The devices that the run may use."""

    devices: tuple[DeviceFacts, ...]


@dataclass(frozen=True, kw_only=True)
class PlanFound(Event):
    """The output has a plan, which a later event may show to be of other work."""

    plan: dict[str, Any]
    """As much of it as can be compared with what happens: `planned.Plan.compared`."""


@dataclass(frozen=True, kw_only=True)
class CollectionStarted(Event):
    """A collection's files are about to be read."""

    files: int


@dataclass(frozen=True, kw_only=True)
class ChunksRead(Event):
    """So many records of a collection are read so far, and so many of its files to their end; every few seconds."""

    records: int
    files: int


@dataclass(frozen=True, kw_only=True)
class ChunkRejected(Event):
    """A record cannot be embedded."""

    rejected: Rejected


@dataclass(frozen=True, kw_only=True)
class ChunksRejected(Event):
    """More records that cannot be embedded, by reason: only in `events.jsonl`, after the first `ChunkRejected`.

    `groups` has those whose reason is one of the first hundred of the collection.
    """

    records: int
    groups: tuple[RejectedGroup, ...]


@dataclass(frozen=True, kw_only=True)
class IdDuplicated(Event):
    """Two chunks of a collection have the same id; the later one was renamed."""

    duplicate: DuplicateId


@dataclass(frozen=True, kw_only=True)
class IdsDuplicated(Event):
    """More chunks whose id another one has: only in `events.jsonl`, after the first `IdDuplicated`."""

    chunks: int


@dataclass(frozen=True, kw_only=True)
class ChunksLoaded(Event):
    """All files of a collection are read: found = loaded + rejected."""

    found: int
    loaded: int
    rejected: int
    distinct_texts: int
    seconds: float
    fields: tuple[FieldsUsed, ...] = ()
    digest: str = ""
    """Of all chunks: equal for equal chunks in the same order."""


@dataclass(frozen=True, kw_only=True)
class ChunksSplit(Event):
    """Chunks beyond the token limit were split into segments, which are points of their own: `--overlong split`."""

    chunks: int
    segments: int
    distinct_texts: int
    """Of the collection, after that."""
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
    """A companion is missing and `--allow-missing-companions` is set; the weights of the others increase."""

    model: str
    why: str


@dataclass(frozen=True, kw_only=True)
class ModelFetchStarted(Event):
    """Files of a model are about to be downloaded from the hub."""

    model: str
    files: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelBytesFetched(Event):
    """Another part of a model was downloaded."""

    model: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelLoadStarted(Event):
    """A model is about to be loaded into memory."""

    model: str


@dataclass(frozen=True, kw_only=True)
class ModelLoaded(Event):
    """A model is in memory, ready to encode."""

    model: str
    dtype: str
    dim: int
    max_tokens: int
    document_prompt: str
    tokenizer: str
    fused: bool = False
    """Whether our own layers compute it, which are faster on a CPU; else those of transformers, or another runtime."""
    kind: VectorKind = "dense"
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ModeChosen(Event):
    """How the models of a collection share the devices, and why."""

    mode: str
    why: str
    fusion: str
    weights: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class LeaseAcquired(Event):
    """A model has exclusive use of devices; `memory` is measured before its weights are copied there.

    `saved_bytes` and `saved_seconds`: weights that did not have to be copied, as they were still on the devices.
    """

    model: str
    devices: list[str]
    memory: list[MemorySnapshot]
    waited_seconds: float
    evicted: list[str]
    saved_bytes: int
    saved_seconds: float
    lease_id: str = ""
    model_pass: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelPlaced(Event):
    """The weights of a model are on the devices of its lease, where `workers` compute; `memory` is measured then."""

    model: str
    model_pass: int | None = None
    lease_id: str
    devices: list[str]
    memory: list[MemorySnapshot]
    placement: str
    workers: int
    seconds: float
    """For moving the weights; close to 0 if they were there."""


@dataclass(frozen=True, kw_only=True)
class LeaseReleased(Event):
    """A model has released its devices; `memory` is measured after its weights were removed.

    `placement`: how it was placed; `kept_bytes`: weights that stay on the devices for the next lease; `leftovers`:
    tensors, hooks or wrappers that should have been removed and were not.
    """

    model: str
    devices: list[str]
    memory: list[MemorySnapshot]
    placement: str
    kept_bytes: int
    leftovers: list[str]
    moving_seconds: float
    lease_id: str = ""
    model_pass: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelEvicted(Event):
    """A model that was kept on devices between passes was removed from them."""

    model: str
    devices: list[str]
    why: str
    leftovers: list[str]


@dataclass(frozen=True, kw_only=True)
class TurnFinished(Event):
    """Sequential mode: every model has encoded these `texts`; `moving_share` of the time went into moving weights."""

    texts: int
    moving_share: float


@dataclass(frozen=True, kw_only=True)
class PassStarted(Event):
    """A model is about to encode a collection; `stored_texts` of its texts already have vectors."""

    model: str
    model_pass: int
    weight: float
    devices: list[str]
    dtype: str
    fingerprint: str
    texts: int
    stored_texts: int
    batch_tokens: int | None = None
    """The most tokens of a batch, if that was asked for, as is the most rows."""
    batch_rows_limit: int | None = None
    max_tokens: int | None = None
    """Of the encoder, like the prompt; None if the model is not loaded and its store does not have it."""
    document_prompt: str | None = None
    kind: VectorKind = "dense"
    """Of the vectors that it makes."""
    counts_words: bool = False
    """Whether it is BM25: nothing is encoded by a model."""
    quantization: str | None = None
    """How int8 products are computed; None if they are not, or as ONNX Runtime does it."""


@dataclass(frozen=True, kw_only=True)
class WindowTokenized(Event):
    """The prefetch thread has tokenised a window of texts; in `events.jsonl` also several `windows`, added up.

    After a device was lost, texts without a vector are tokenised once more.
    """

    model: str
    model_pass: int
    texts: int
    tokens: int
    truncated_texts: int = 0
    """Texts beyond the token limit that lose their end. `PassFinished.truncated` counts the chunks that have them."""
    segments: int = 0
    """Into which texts beyond the token limit were cut, to be pooled."""
    windows: int = 1
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BatchEncoded(Event):
    """A batch, or the part of it that one device computed, is done, checked and handed to the store.

    It was planned with `planned_rows`; fewer `rows` were run at once where memory had no room for more.

    `predicted_bytes` and `measured_bytes`: peak memory of the activations; 0 if nothing was predicted, or if the batch
    was split. `packed`: without padding. `fp32_rows`: rows that were recomputed in fp32. `texts`: those that have their
    vector with it; a text that is pooled has several rows, which may be in several batches.

    `began`: when the forward began, by the clock of the device where it has one. `lengths`: the `texts` by tokens.
    `prediction_error`: |predicted - measured| / measured, after the first batches of a device, which it learns from.
    """

    model: str
    model_pass: int
    batch_index: int
    device: str
    dtype: str
    rows: int
    texts: int
    planned_rows: int
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
    began: float | None = None
    lease_id: str = ""
    prediction_error: float | None = None
    lengths: Lengths = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BatchesEncoded(Event):
    """Batches of a pass on one device, added up: only in `events.jsonl`, after the first batches of a pass.

    `timestamp`: of the last; `began`: of the first. `held_bytes`: the most that was reserved or used by others, after a
    batch; `peak_held_bytes`: the same, during one. `memory`: after the last batch, with the highest peaks of all.
    `packed` and `reduced` count batches.
    """

    model: str
    model_pass: int
    lease_id: str
    device: str
    dtype: str
    first_index: int
    batches: int
    packed: int
    reduced: int
    """Batches that were run in parts, as memory had no room for all rows."""
    rows: int
    texts: int
    tokens: int
    padded_tokens: int
    bad_rows: int
    fp32_rows: int
    fewest_rows: int
    most_rows: int
    most_padded_tokens: int
    longest: int
    wait_seconds: float
    forward_seconds: float
    began: float
    held_bytes: int
    peak_held_bytes: int
    memory: MemorySnapshot
    predicted_peak_bytes: int = 0
    """The most that was expected to be allocated during one of them; 0 if nothing was predicted."""
    prediction_errors: dict[int, int] = field(default_factory=dict)
    """How many batches had an error of so many thousandths."""
    lengths: Lengths = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BatchStalled(Event):
    """A batch takes much longer than those before it, and the device may hang; `memory` is as it was last read."""

    model: str
    model_pass: int
    device: str
    rows: int
    longest: int
    seconds: float
    expected_seconds: float
    memory: MemorySnapshot


@dataclass(frozen=True, kw_only=True)
class PrecisionChosen(Event):
    """How a pass is computed, by `--min-cosine`: what was measured on some texts of the collection, and the choice."""

    model: str
    model_pass: int
    dtype: str
    quantization: str | None
    way: str
    """The choice, in words."""
    min_cosine: float
    measured: tuple[MeasuredWay, ...]
    kept: bool
    """Whether an earlier run has chosen it."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class PrecisionChecked(Event):
    """What a low precision costs: vectors of some texts of the collection, compared with fp32."""

    model: str
    model_pass: int
    dtype: str
    texts: int
    mean_cosine: float
    worst_cosine: float
    seconds: float
    """Close to 0 if an earlier run has compared them."""


@dataclass(frozen=True, kw_only=True)
class PassFinished(Event):
    """The pass has ended: `stored_chunks` have a vector from this model on disk; all of them, unless it was stopped.

    `rows`: encoded by this run; `batch_rows`: the most that were in flight at once, over all `devices` together.
    `truncated` or `pooled`: chunks beyond the token limit; the longest of their texts, all tokens of those that were
    truncated, how many of them were lost, and the texts that lost most. Nothing of these if nothing was encoded.
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
    pooled: int = 0
    truncated_tokens: int = 0
    longest_tokens: int = 0
    tokens_lost: int = 0
    lost_most: tuple[TruncatedText, ...] = ()
    lease_ids: tuple[str, ...] = ()
    """Of the leases that it had in this process, in order."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class VectorsFused(Event):
    """All passes are complete: the number of points, the vectors of each, and what is known of sparse ones."""

    points: int
    vectors: tuple[VectorSpec, ...]
    sparse: tuple[SparseFacts, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExportStarted(Event):
    """An export is about to be written."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class PointsExported(Event):
    """So many points of an export are written so far; every few seconds."""

    kind: str
    points: int
    total: int


@dataclass(frozen=True, kw_only=True)
class GraphBuilding(Event):
    """The search graph of an export is being built; again and again until it is done."""

    kind: str
    points: int
    graph: HnswGraph
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ExportWritten(Event):
    """An export is on disk under its final name."""

    exported: ExportedFile
    seconds: float
    """Its share where exports are written side by side: those of all add up to the time that they took."""


@dataclass(frozen=True, kw_only=True)
class CompanionPlaced(Event):
    """A companion was assigned a device before it started; `kind` as in `execution.MITIGATIONS`."""

    kind: str
    model: str
    device: str
    primary_device: str
    why: str

    @property
    def details(self) -> dict[str, Any]:
        """What happened, as mitigations tell it."""
        return {"model": self.model, "before": self.primary_device, "after": self.device, "reason": self.why}


@dataclass(frozen=True, kw_only=True)
class Mitigated(Event):
    """A batch, a placement or a precision was changed; `execution.MITIGATIONS` lists the kinds.

    In `events.jsonl`, after the first ones of a collection, those of one kind, device and model are added up: `times`,
    from `timestamp` `until`, with the details of the first.
    """

    kind: str
    details: dict[str, Any]
    times: int = 1
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """A warning for the user; the run continues."""

    message: str


@dataclass(frozen=True, kw_only=True)
class CollectionSkipped(Event):
    """A collection has its exports from an earlier run, whose counts these are, and is not read again."""

    found: int
    embedded: int
    rejected: int
    split: SplitCounts
    distinct_texts: int
    vectors: tuple[VectorSpec, ...]
    sparse: tuple[SparseFacts, ...] = ()
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
    """The last event; `error` is set if the run failed, or found nothing to embed."""

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
    """The server has stored a batch of points."""

    target: str
    points: int


@dataclass(frozen=True, kw_only=True)
class EvaluationStarted(Event):
    """A part of an evaluation begins: `what` is done for `total` queries."""

    what: str
    total: int


@dataclass(frozen=True, kw_only=True)
class EvaluationAdvanced(Event):
    """It is done for some more queries."""

    what: str
    queries: int


@dataclass(frozen=True, kw_only=True)
class EvaluationEnded(Event):
    """It is done for all queries."""

    what: str


@dataclass(frozen=True, kw_only=True)
class Retried(Event):
    """A call failed with a temporary error and will be retried."""

    what: str
    attempt: int
    wait_seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class ServerChanged(Event):
    """Something else on the server was changed than the points of an upload: `message` says what."""

    target: str
    message: str


@dataclass(frozen=True, kw_only=True)
class UploadFinished(Event):
    """The server holds every point; `counted` is the number that it reports."""

    target: str
    counted: int
    seconds: float


class Interval:
    """Says when it is time to tell of progress again: events are written to a file, and must not be many."""

    def __init__(self, seconds: float = 2.0) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def is_over(self) -> bool:
        """Whether so many seconds have gone by since it last was, or since the beginning."""
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def fan_out(sinks: list[Emit]) -> Emit:
    """Make one `emit` that hands each event to every sink, in order; may be called from any thread."""
    lock = OrderedLock("emit", Rank.EMIT)

    def emit(event: Event) -> None:
        event = _storable(event)
        with lock:
            for sink in sinks:
                sink(event)

    return emit


def _storable(event: Event) -> Event:
    """The event in valid Unicode: messages may name a file, and the name of a file may be any bytes."""
    texts = {key: value for key, value in vars(event).items() if isinstance(value, str)}
    changed: dict[str, Any] = {key: valid_unicode(text) for key, text in texts.items() if valid_unicode(text) != text}
    return dataclasses.replace(event, **changed) if changed else event


def _json_dict(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: _plain(value) for key, value in items}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if dump := getattr(value, "model_dump", None):  # of `RunOptions`, which is not imported here
        return dump(mode="json")
    return valid_unicode(str(value)) if isinstance(value, Path | InMemory | str) else value
