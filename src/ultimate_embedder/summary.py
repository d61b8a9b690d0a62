"""The schema of `summary.json`. `make generated` writes it as JSON Schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator

from ultimate_embedder.config import FieldChoice
from ultimate_embedder.markup import html_table
from ultimate_embedder.types import DeviceFacts, FieldsUsed, SparseFacts, Status, VectorKind, VectorSpec

DUPLICATE_IDS = AliasChoices("duplicate_ids", "repeated_ids")  # earlier versions wrote repeated_ids

TABLE_HEADINGS = ("collection", "status", "chunks", "embedded", "rejected", "truncated", "dims", "models", "seconds")


class _Part(BaseModel):
    # a file of another version may have other fields: unknown ones are ignored. Most commands only import this module
    model_config = ConfigDict(extra="ignore", protected_namespaces=(), defer_build=True)


class ChunkCounts(_Part):
    """Chunks of a collection; found = embedded + rejected in a completed one.

    If chunks were split, embedded and rejected count points: found - split + split_points = embedded + rejected.

    Of a collection that was skipped because it has its exports, the first four are those of the run that wrote them.
    """

    found: int = Field(0, description="records in the files")
    embedded: int = Field(0, description="records that have a vector and are in the exports")
    rejected: int = Field(0, description="records that could not be embedded, each listed under rejected")
    distinct_texts: int = Field(0, description="distinct texts; equal texts share a vector")
    newly_encoded: int = Field(0, description="texts encoded by this run; the others were stored before")
    truncated: int = Field(0, description="chunks truncated at the token limit")
    pooled: int = Field(0, description="chunks beyond the token limit whose vector is the mean of their segments")
    split: int = Field(0, description="chunks beyond the token limit that were split into several points")
    split_points: int = Field(0, description="the points that they became: found - split + split_points = all points")
    longest_tokens: int = Field(
        0, description="tokens of the longest text, if it is beyond the limit of a model; 0 if nothing was encoded"
    )
    tokens_lost: int = Field(0, description="tokens that truncation dropped; 0 if nothing was encoded")
    duplicate_ids: int = Field(
        0, validation_alias=DUPLICATE_IDS, description="chunks that were renamed, as another chunk already had their id"
    )


class RejectedRecord(_Part):
    """One record that could not be embedded."""

    file: str
    position: int | None = Field(description="record number in the file, from 0; null for the file itself")
    reason: str


class RejectionGroup(_Part):
    """Records that were rejected for the same reason, and the first of them."""

    records: int
    reason: str = Field(description="with N for numbers in which they differ")
    advice: str = Field("", description="what to do about it, if that is known")
    file: str
    position: int | None = Field(description="record number in the file, from 0; null for the file itself")


class DuplicateChunkId(_Part):
    """A chunk whose id occurred before in its collection."""

    chunk_id: str
    file: str
    position: int
    renamed_to: str


class ModelSummary(_Part):
    """A model and where its files came from."""

    model: str
    hub_id: str | None
    revision: str = Field(description="commit of the hub, version of the package, or begin of the digest of a folder")
    source: str
    path: str
    digest: str = Field(description="sha256 over all files of the model")
    size_bytes: int
    seconds: float = Field(0.0, description="to find or download the model")
    retries: int = Field(0, description="calls to the hub that were retried")
    note: str = ""
    kind: VectorKind = Field("dense", description="of its vectors")
    weight: float = Field(1.0, description="0 for a sparse model, whose vectors are not fused")
    dtype: str | None = Field(None, description="number format that its vectors are computed in")
    dim: int | None = None
    max_tokens: int | None = None
    document_prompt: str | None = None


class Agreement(_Part):
    """Cosine similarity of low-precision vectors to fp32, on some texts of this collection."""

    texts: int
    mean_cosine: float
    worst_cosine: float


class MeasuredWay(_Part):
    """A way to compute in a low precision, measured on some texts of this collection."""

    quantization: str | None = Field(description="how int8 products are computed; null for other formats")
    texts: int
    mean_cosine: float = Field(description="with fp32, over these texts")
    worst_cosine: float
    speed: float = Field(description="in that of fp32, on one core")


class PrecisionChoice(_Part):
    """What --min-cosine chose, and from what."""

    min_cosine: float = Field(description="the mean cosine that was asked for")
    way: str = Field(description="what was chosen")
    kept: bool = Field(description="whether an earlier run has measured and chosen")
    measured: list[MeasuredWay]


class TruncatedChunk(_Part):
    """A chunk whose text was truncated. Tokens of texts of more than a million characters are estimated."""

    chunk_id: str
    file: str
    position: int
    tokens: int
    tokens_lost: int


class LengthBin(_Part):
    """Texts of similar length that this run encoded."""

    most_tokens: int = Field(
        description="tokens of the longest text that belongs here; shorter ones have their own bin"
    )
    texts: int
    overlong: int = Field(description="texts beyond the token limit of the model")
    tokens: int = Field(description="of these texts, also beyond the limit")
    tokens_lost: int = Field(description="tokens that truncation dropped")


class SlowBatch(_Part):
    """One of the batches with the longest forward."""

    seconds: float
    began: float = Field(description="when its forward began: seconds since 1970, like all times of events")
    collection: str
    model: str
    device: str
    batch_index: int
    rows: int
    longest: int = Field(description="tokens of its longest row")
    tokens: int


class PassSummary(_Part):
    """One model over the collection, or BM25, which counts words: tokens are words then."""

    model: str
    model_pass: int
    kind: VectorKind = Field("dense", description="of the vectors that it makes")
    counts_words: bool = Field(False, description="whether it is BM25: nothing is encoded by a model")
    fingerprint: str = Field(description="hash of everything that affects the vectors; the folder name in store/")
    weight: float = Field(description="0 for sparse vectors, which are not fused")
    devices: list[str] = Field(description="that worked on it; where nothing was to be encoded, those planned for it")
    dtype: str = Field(description="computed in; of several, what was planned: tokens_by_dtype has the shares")
    dim: int = Field(0, description="0 for sparse vectors")
    texts: int = Field(description="distinct texts in the collection")
    stored_texts: int = Field(description="texts that already had a vector before the run")
    encoded_texts: int = Field(
        0,
        description="texts that this run encoded; those of a lost node may count twice, as others do them again",
    )
    stored_chunks: int = Field(0, description="chunks that had a vector from this model when the pass ended")
    batches: int = 0
    reduced_batches: int = Field(0, description="batches that were run in parts, as memory had no room for all rows")
    batch_tokens: int | None = Field(None, description="the most tokens of a batch that was asked for")
    batch_rows_limit: int | None = Field(None, description="the most rows of a batch that was asked for")
    largest_batch_tokens: int = Field(0, description="padded tokens of the largest batch that was run")
    largest_batch_rows: int = 0
    batch_rows: int = Field(0, description="most rows in flight at once: the largest batches of all devices together")
    packed_batches: int = Field(0, description="batches run without padding, rows concatenated")
    tokens: int = 0
    padded_tokens: int = 0
    padding_ratio: float = Field(1.0, description="padded tokens / tokens")
    tokens_by_device: dict[str, int] = Field(default_factory=dict)
    tokens_by_dtype: dict[str, int] = Field(default_factory=dict, description="by number format that was computed in")
    truncated: int = Field(0, description="chunks truncated at the token limit, also if an earlier run encoded them")
    truncated_texts: int = Field(
        0, description="texts truncated by this run; several chunks may have the same text, which is encoded once"
    )
    lengths: list[LengthBin] = Field(
        default_factory=list, description="the texts that this run encoded, by their tokens; they sum to encoded_texts"
    )
    pooled: int = Field(0, description="chunks beyond the token limit whose vector is the mean of their segments")
    segments: int = Field(0, description="segments that this run cut texts into to pool them")
    longest_tokens: int = Field(
        0, description="tokens of the longest text, if it is beyond the limit; 0 if nothing was encoded"
    )
    tokens_lost: int = Field(0, description="tokens that truncation dropped; 0 if nothing was encoded")
    lost_share: float = Field(0.0, description="tokens_lost / all tokens of the texts that were truncated")
    lost_most: list[TruncatedChunk] = Field(
        default_factory=list, description="the texts that lost most tokens; empty if nothing was encoded"
    )
    fp32_rows: int = Field(
        0, description="rows recomputed in fp32 because their vectors were not finite or not normalised"
    )
    began: float | None = Field(None, description="when it started: seconds since 1970")
    ended: float | None = Field(None, description="when it ended; null if it did not")
    lease_ids: list[str] = Field(default_factory=list, description="its leases: lease_id under leases")
    seconds: float = 0.0
    tokenize_seconds: float = Field(0.0, description="on the prefetch thread, in parallel with the forward")
    forward_seconds: float = Field(0.0, description="of all its workers together, like wait_seconds")
    wait_seconds: float = Field(0.0, description="time that devices were idle before a batch")
    seconds_by_part: dict[str, float] = Field(
        default_factory=dict,
        description="its seconds, as its workers spent them on average: moving weights, forward, wait (idle before a "
        "batch), other (all else, such as waiting for other workers at the end)",
    )
    texts_per_second: float = 0.0
    tokens_per_second: float = 0.0
    peak_memory_bytes: int = Field(0, description="most memory that was allocated on a device of the pass")
    peak_reserved_bytes: int = Field(0, description="most memory that was reserved on a device of the pass")
    predicted_peak_bytes: int = Field(
        0, description="the highest that the run itself predicted of peak_memory_bytes, batch by batch"
    )
    planned_tokens: int | None = Field(None, description="by plan.json, if that is of this work")
    planned_seconds_low: float | None = Field(None, description="by plan.json, if it is of this work and these devices")
    planned_seconds_high: float | None = None
    agreement: Agreement | None = Field(None, description="comparison with fp32, for a lower precision")
    quantization: str | None = Field(
        None, description="how int8 products are computed; null if they are not, or as ONNX Runtime does it"
    )
    choice: PrecisionChoice | None = Field(None, description="what --min-cosine chose")
    prediction_error: float | None = Field(
        None, description="95th percentile of |predicted - measured| / measured peak memory, after ten batches"
    )


class LeaseSummary(_Part):
    """A lease, a release or an eviction; memory is measured before weights are copied or after they were removed."""

    event_type: Literal["acquire", "release", "evict"]
    lease_id: str = Field("", description="the same for a lease and its release, and in lease_ids of its pass")
    timestamp: float
    model: str
    model_pass: int | None = Field(None, description="of the pass that had it; null in summaries of earlier versions")
    devices: list[str]
    memory: list[dict[str, Any]] = Field(default_factory=list, description="one entry per device")
    memory_placed: list[dict[str, Any]] = Field(
        default_factory=list, description="after the weights were copied: one entry per device; only for acquire"
    )
    placement: str = Field("", description="how the model was placed: replicas, nn.DataParallel, or streamed")
    evicted: list[str] = Field(default_factory=list, description="models that were evicted to make room")
    saved_bytes: int = Field(0, description="weights that were still on the devices from an earlier lease")
    saved_seconds: float = 0.0
    kept_bytes: int = Field(0, description="weights that stay on the devices for the next lease")
    leftovers: list[str] = Field(
        default_factory=list, description="what should have been removed from the devices and was not"
    )
    moving_seconds: float = Field(0.0, description="time for moving weights")
    why: str = ""


class FusionSummary(_Part):
    """How the models' vectors were combined."""

    method: str
    weights: dict[str, float] = Field(description="per model; they sum to one")
    vectors: list[VectorSpec] = Field(default_factory=list, description="the vectors of a point")

    @field_validator("vectors", mode="before")
    @classmethod
    def _read_dims_by_name(cls, value: Any) -> Any:
        """Earlier versions wrote a mapping of names to dimensions."""
        return [{"name": name, "dim": dim} for name, dim in value.items()] if isinstance(value, dict) else value


class ExportSummary(_Part):
    """One export on disk."""

    kind: str
    path: str
    rows: int
    size_bytes: int
    sha256: str
    seconds: float = Field(description="spent by this run; 0 where the collection was skipped")


class MitigationSummary(_Part):
    """A batch, a placement or a precision that was changed.

    Where a collection has very many, further ones of the same type, device and model are counted with the last of them.
    """

    type: str
    timestamp: float
    details: dict[str, Any]
    times: int = 1
    until: float | None = Field(None, description="when the last of them was, if they are several")


class DeviceSummary(_Part):
    """A device of the run, and how much of it may be used."""

    device: str
    total_bytes: int
    ceiling_bytes: int
    ceiling_reason: str = Field(
        "", description="what set the ceiling: an option, a default, or a margin below the total; empty if not known"
    )
    capability: tuple[int, int] | None = Field(None, description="compute capability of a card")
    peak_bytes: int = Field(0, description="the most that was reserved or used by others, during a batch")
    batches: int = 0
    forward_seconds: float = Field(0.0, description="that it computed; of all its workers together, on a CPU")
    leased_seconds: float = Field(0.0, description="that models had it, by leases that have ended")


class NodeLoss(_Part):
    """The process on a node was gone, or of no use."""

    timestamp: float
    reason: str
    texts: int = Field(0, description="that it had, and that other nodes had to do")


class NodeSummary(_Part):
    """A node of the cluster that the run was on; numbers are of this run."""

    node: str = Field(description="such as node-2; nodes are numbered in the order in which they are found")
    node_id: str = Field("", description="what the cluster calls it")
    address: str = ""
    host: str = Field("", description="its name for itself; empty if it never said it")
    cores: int = Field(0, description="that the run had there")
    devices: list[DeviceFacts] = Field(default_factory=list, description="by their names in this summary")
    dtype: str = Field("", description="number format that it computes in")
    versions: dict[str, str] = Field(default_factory=dict, description="of Python and of packages there")
    differs: list[str] = Field(
        default_factory=list, description="versions that may change the last digits of its vectors"
    )
    joined_at: float | None = Field(None, description="seconds since 1970; null if it never took part")
    lost: int = Field(0, description="how often its process was lost; it was started again if the node was there")
    losses: list[NodeLoss] = Field(default_factory=list, description="the first of them")
    refused: str | None = Field(None, description="why it may not take part, or not any longer")
    texts: int = Field(0, description="that it encoded; what was lost with it others have encoded again")
    batches: int = 0
    tokens: int = 0


class TelemetrySummary(_Part):
    """What happened, under the names that existing notebooks know; only their class and their script write it."""

    lease_events: list[dict[str, Any]] = Field(default_factory=list, description="devices acquired and released")
    mitigation_events: list[dict[str, Any]] = Field(
        default_factory=list, description="passes started and completed, mitigations, companions that were missing"
    )
    cache_events: list[dict[str, Any]] = Field(default_factory=list, description="where the models came from")


class CollectionSummary(_Part):
    """Everything about one collection."""

    collection: str
    status: Status | None = Field(None, description="null only while the collection is being processed")
    error: str | None = None
    files: int = 0
    chunks: ChunkCounts = Field(default_factory=lambda: ChunkCounts())
    fields: list[FieldsUsed] = Field(
        default_factory=list, description="where text, ids and metadata were found in the records"
    )
    rejected: list[RejectedRecord] = Field(default_factory=list)
    rejected_by_reason: list[RejectionGroup] = Field(default_factory=list)
    duplicate_ids: list[DuplicateChunkId] = Field(default_factory=list, validation_alias=DUPLICATE_IDS)
    mode: str | None = Field(None, description="how the models shared the devices; single for one model")
    mode_reason: str = ""
    turn_texts: list[int] = Field(
        default_factory=list, description="sequential mode: texts that each model encoded before the next one"
    )
    fusion: FusionSummary | None = None
    vectors: list[VectorSpec] = Field(default_factory=list, description="the vectors of a point, in the exports")
    sparse: list[SparseFacts] = Field(
        default_factory=list, description="each sparse vector, and what is needed to encode queries for it"
    )
    models: list[ModelSummary] = Field(default_factory=list)
    leases: list[LeaseSummary] = Field(default_factory=list)
    passes: list[PassSummary] = Field(default_factory=list)
    exports: list[ExportSummary] = Field(
        default_factory=list, description="those that were asked for; in a skipped collection, of an earlier run"
    )
    target_qdrant_collection: str | None = Field(None, description="the collection that 'upload' would fill")
    mitigations: list[MitigationSummary] = Field(default_factory=list)
    telemetry: TelemetrySummary | None = Field(None, description="null unless an existing notebook or script ran")
    warnings: list[str] = Field(default_factory=list)
    seconds_by_stage: dict[str, float] = Field(
        default_factory=lambda: {"load": 0.0, "model": 0.0, "encode": 0.0, "export": 0.0},
        description="they sum to seconds; other: what belongs to no stage",
    )
    encode_seconds: dict[str, float] = Field(
        default_factory=dict, description="what encode consists of: seconds_by_part of its passes"
    )
    seconds: float = 0.0

    @property
    def encoding_passes(self) -> list[PassSummary]:
        """The passes that encode texts with a model."""
        return [each for each in self.passes if not each.counts_words]

    @property
    def dense_passes(self) -> list[PassSummary]:
        """The passes whose vectors are dense, and fused if there are several."""
        return [each for each in self.passes if each.kind == "dense"]

    @property
    def dense_models(self) -> list[ModelSummary]:
        """The models whose vectors are dense."""
        return [each for each in self.models if each.kind == "dense"]


class MissingModel(_Part):
    """A companion that could not be had."""

    model: str
    why: str


class PlanFigure(_Part):
    """One number of the plan, beside what it turned out to be."""

    what: str = Field(description="such as tokens, or peak memory allocated")
    unit: Literal["chunks", "points", "texts", "tokens", "words", "bytes", "seconds"]
    collection: str | None = Field(None, description="null if it is of the run as a whole")
    model: str | None = None
    device: str | None = None
    planned: float = Field(description="of a range, its geometric mean")
    planned_low: float | None = Field(None, description="null unless a range was planned")
    planned_high: float | None = None
    actual: float
    off: float | None = Field(None, description="(planned - actual) / actual; null if actual is 0 and planned is not")
    basis: str = Field("", description="what the plan rests on, if it is an estimate")


class PlanSummary(_Part):
    """The plan that was in the output when the run began, and how far off it was."""

    made_at: str
    verdict: str
    same_work: bool = Field(description="whether it is of these chunks, models and options; else there are no figures")
    same_devices: bool = Field(True, description="else there are no figures of memory and time")
    why: str = Field("", description="what differs")
    figures: list[PlanFigure] = Field(default_factory=list)


class ChosenModel(_Part):
    """A model as named in the options."""

    name: str
    weight: float = 1.0


class ChosenSparse(_Part):
    """A sparse vector as named in the options."""

    method: str
    model: str | None = None
    bm25: dict[str, Any] | None = None


class RunOptions(_Part):
    """The resolved options of the run; those that are read again are typed here."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), defer_build=True)

    chunks: list[str] = Field(default_factory=list, description="the inputs, as they were given")
    name: str | None = Field(None, description="the name of the only collection, if one was given")
    models: list[ChosenModel] = Field(default_factory=list)
    sparse: list[ChosenSparse] = Field(default_factory=list)
    mode: str = "auto"
    fusion: str = "named"
    no_ensemble: list[str] = Field(default_factory=list, description="collections for the first model only")
    max_tokens: int | None = None
    token_cap: int | None = None
    overlong: str = "truncate"
    overlap: int | None = None
    dim: int | None = None
    fields: FieldChoice = Field(default_factory=FieldChoice)
    gradient_checkpointing: bool = False
    dry_run: bool = False

    @field_validator("chunks", mode="before")
    @classmethod
    def _one_input(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value  # earlier versions had only one


class RunSummary(_Part):
    """Everything about one run."""

    schema_version: Literal[1] = 1
    program: str = "ultimate-embedder"
    versions: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)
    started_at: str = ""
    seconds: float = 0.0
    seconds_by_stage: dict[str, float] = Field(
        default_factory=dict,
        description="they sum to seconds; start: until the first collection, with finding models and opening devices",
    )
    error: str | None = Field(
        None, description="why the run as a whole failed, or what it found instead of chunk files"
    )
    dry_run: bool = False
    chunks: str = ""
    output: str = ""
    options: RunOptions | None = Field(None, description="null if the options were invalid")
    command: list[str] = Field(default_factory=list, description="the command line as typed; empty if run from Python")
    working_directory: str = Field(
        "", description="the folder that relative paths of the command and the options are of"
    )
    ensemble_mode: str = Field("disabled", description="of collections with several models")
    missing_models: list[MissingModel] = Field(
        default_factory=list, description="companions that the run went on without, as --allow-missing-companions says"
    )
    devices: list[DeviceSummary] = Field(default_factory=list)
    nodes: list[NodeSummary] = Field(default_factory=list, description="of a cluster; empty for a run on one machine")
    slowest_batches: list[SlowBatch] = Field(default_factory=list, description="the slowest first")
    collections: list[CollectionSummary] = Field(default_factory=list)
    plan: PlanSummary | None = Field(None, description="plan and actual side by side; null if there was no plan")
    warnings: list[str] = Field(default_factory=list)

    @field_validator("options", mode="before")
    @classmethod
    def _no_options(cls, value: Any) -> Any:
        return value or None  # earlier versions wrote {} for invalid options

    @property
    def ok(self) -> bool:
        """Whether every collection was completed or skipped on request."""
        good = ("completed", "planned", "skipped_no_chunks", "skipped_existing")
        return (
            self.error is None
            and bool(self.collections)
            and all(collection.status in good for collection in self.collections)
        )

    def __repr__(self) -> str:
        counts = [each.chunks for each in self.collections]
        chunks = f"{sum(each.embedded for each in counts)} of {sum(each.found for each in counts)} chunks embedded"
        failed = "" if self.ok else f"; {self.error or 'not complete'}"
        return f"<RunSummary: {', '.join(each.collection for each in self.collections) or 'nothing'}: {chunks}{failed}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        rows = [_cells(each) for each in self.collections]
        notes = [f"{each.collection} {each.status}: {each.error}" for each in self.collections if each.error]
        notes += [self.error] if self.error else []
        notes += [f"Output: {self.output}"] if self.output else []
        took = f"{'Embedded in' if self.ok else 'Not complete, after'} {self.seconds:.1f} s"
        return html_table(took, TABLE_HEADINGS, rows, notes)


def _cells(collection: CollectionSummary) -> list[object]:
    counts = collection.chunks
    return [
        collection.collection,
        collection.status or "",
        counts.found,
        counts.embedded,
        counts.rejected,
        counts.truncated,
        ", ".join(map(str, collection.vectors)) or "-",
        ", ".join(dict.fromkeys(each.model for each in collection.passes)) or "-",
        collection.seconds,
    ]
