"""`summary.json` as a contract: the models below are the schema. `make generated` writes them as JSON Schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ultimate_embedder.types import Status, VectorSpec


class _Part(BaseModel):
    # a file of another version may have more fields than these: what is not known is not read
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class ChunkCounts(_Part):
    """Chunks of a collection; found = embedded + rejected in a completed one."""

    found: int = Field(0, description="records in the files")
    embedded: int = Field(0, description="records that have a vector; in the exports, once these are written")
    rejected: int = Field(0, description="records that could not be embedded, each listed under rejected")
    distinct_texts: int = Field(0, description="different texts; equal ones share a vector")
    newly_encoded: int = Field(0, description="texts encoded by this run; the rest was stored before")
    truncated: int = Field(0, description="chunks cut at the token limit")
    repeated_ids: int = Field(0, description="chunks whose id another chunk already had")


class RejectedRecord(_Part):
    """One record that could not be embedded."""

    file: str
    position: int | None = Field(description="record number in the file, from 0; null for the file itself")
    reason: str


class RepeatedChunkId(_Part):
    """A chunk id that occurred before in its collection."""

    chunk_id: str
    file: str
    position: int
    renamed_to: str


class ModelSummary(_Part):
    """A model and where its files came from."""

    model: str
    hub_id: str | None
    revision: str
    source: str
    path: str
    digest: str = Field(description="sha256 over all files of the model")
    size_bytes: int
    seconds: float = Field(0.0, description="to find the model, or to fetch it")
    retries: int = Field(0, description="calls to the hub that had to be repeated")
    note: str = ""
    weight: float = 1.0
    dim: int | None = None
    max_tokens: int | None = None
    document_prompt: str | None = None


class Agreement(_Part):
    """Vectors of a low precision against those in fp32, on some texts of this collection."""

    texts: int
    mean_cosine: float
    worst_cosine: float


class PassSummary(_Part):
    """One model over the collection."""

    model: str
    model_pass: int
    fingerprint: str = Field(description="names everything that changes a vector; the folder in store/")
    weight: float
    devices: list[str] = Field(description="that worked on it; where nothing was to be encoded, those planned for it")
    dtype: str
    dim: int = 0
    texts: int = Field(description="different texts in the collection")
    stored_texts: int = Field(description="of these, how many had a vector before the run")
    encoded_texts: int = Field(0, description="texts that this run encoded")
    stored_chunks: int = Field(0, description="chunks that have their vector from this model, when the pass ended")
    batches: int = 0
    largest_batch_rows: int = 0
    batch_rows: int = Field(0, description="rows at work at once, at most: the largest batches of all devices together")
    packed_batches: int = Field(0, description="batches that were run without padding, rows laid end to end")
    tokens: int = 0
    padded_tokens: int = 0
    padding_ratio: float = Field(1.0, description="padded tokens / tokens")
    tokens_by_device: dict[str, int] = Field(default_factory=dict)
    truncated: int = 0
    fp32_rows: int = Field(0, description="rows computed again in fp32 because their vectors were unusable")
    seconds: float = 0.0
    tokenize_seconds: float = Field(0.0, description="on its own thread, beside the forward")
    forward_seconds: float = 0.0
    wait_seconds: float = Field(0.0, description="devices had nothing to do before a batch")
    texts_per_second: float = 0.0
    tokens_per_second: float = 0.0
    peak_memory_bytes: int = Field(0, description="the most that a device of the pass had allocated")
    peak_reserved_bytes: int = Field(0, description="the most that a device of the pass had reserved")
    agreement: Agreement | None = Field(None, description="with fp32, where a lower precision was asked for")
    prediction_error: float | None = Field(
        None, description="95th percentile of |predicted - measured| / measured peak memory, after ten batches"
    )


class LeaseSummary(_Part):
    """Devices given to a model, or given back; memory before it moved in, or after it had left."""

    event_type: Literal["acquire", "release", "evict"]
    timestamp: float
    model: str
    devices: list[str]
    memory: list[dict[str, Any]] = Field(default_factory=list, description="one entry a device")
    placement: str = Field("", description="how the model was on its devices: replicas, nn.DataParallel, or streamed")
    evicted: list[str] = Field(default_factory=list, description="models that had to make room")
    saved_bytes: int = Field(0, description="weights that were still there from an earlier lease")
    saved_seconds: float = 0.0
    kept_bytes: int = Field(0, description="weights that stay on the devices for the next lease")
    leftovers: list[str] = Field(default_factory=list, description="what should have gone and has not")
    moving_seconds: float = Field(0.0, description="spent on moving weights")
    why: str = ""


class FusionSummary(_Part):
    """What the models' vectors became."""

    method: str
    weights: dict[str, float] = Field(description="by model; they sum to one")
    vectors: list[VectorSpec] = Field(default_factory=list, description="the vectors of a point")

    @field_validator("vectors", mode="before")
    @classmethod
    def _read_dims_by_name(cls, value: Any) -> Any:
        """Summaries were written with dimensions by name here; these are read, too."""
        return [{"name": name, "dim": dim} for name, dim in value.items()] if isinstance(value, dict) else value


class ExportSummary(_Part):
    """One export on disk."""

    kind: str
    path: str
    rows: int
    size_bytes: int
    sha256: str
    seconds: float


class MitigationSummary(_Part):
    """A recorded change of course."""

    type: str
    timestamp: float
    details: dict[str, Any]


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
    status: Status | None = Field(None, description="null only while the collection is being worked on")
    error: str | None = None
    files: int = 0
    chunks: ChunkCounts = Field(default_factory=lambda: ChunkCounts())
    rejected: list[RejectedRecord] = Field(default_factory=list)
    repeated_ids: list[RepeatedChunkId] = Field(default_factory=list)
    mode: str | None = Field(None, description="how the models shared the devices; single for one model")
    mode_reason: str = ""
    turn_texts: list[int] = Field(default_factory=list, description="lengths of the turns, where models take turns")
    fusion: FusionSummary | None = None
    models: list[ModelSummary] = Field(default_factory=list)
    leases: list[LeaseSummary] = Field(default_factory=list)
    passes: list[PassSummary] = Field(default_factory=list)
    exports: list[ExportSummary] = Field(default_factory=list)
    target_qdrant_collection: str | None = None
    mitigations: list[MitigationSummary] = Field(default_factory=list)
    telemetry: TelemetrySummary | None = Field(None, description="null unless an existing notebook or script ran")
    warnings: list[str] = Field(default_factory=list)
    seconds_by_stage: dict[str, float] = Field(
        default_factory=lambda: {"load": 0.0, "model": 0.0, "encode": 0.0, "export": 0.0}
    )
    seconds: float = 0.0


class ChosenModel(_Part):
    """A model as it was asked for."""

    name: str
    weight: float = 1.0


class RunOptions(_Part):
    """All options of the run, as they were resolved; those that a reader may rely on have a type here."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    models: list[ChosenModel] = Field(default_factory=list)
    mode: str = "auto"
    fusion: str = "named"
    no_ensemble: list[str] = Field(default_factory=list, description="collections for the first model only")
    max_tokens: int | None = None
    token_cap: int | None = None
    dim: int | None = None
    gradient_checkpointing: bool = False
    dry_run: bool = False


class RunSummary(_Part):
    """Everything about one run."""

    schema_version: Literal[1] = 1
    program: str = "ultimate-embedder"
    versions: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)
    started_at: str = ""
    seconds: float = 0.0
    error: str | None = Field(None, description="why the run as a whole could not be carried out")
    dry_run: bool = False
    chunks: str = ""
    output: str = ""
    options: RunOptions | None = Field(None, description="null where the run got no further than its options")
    ensemble_mode: str = Field("disabled", description="of collections with several models")
    collections: list[CollectionSummary] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)

    @field_validator("options", mode="before")
    @classmethod
    def _no_options(cls, value: Any) -> Any:
        return value or None  # earlier versions wrote {} where there were none

    @property
    def ok(self) -> bool:
        """Whether everything that was asked for was done."""
        good = ("completed", "planned", "skipped_no_chunks", "skipped_existing")
        return (
            self.error is None
            and bool(self.collections)
            and all(collection.status in good for collection in self.collections)
        )
