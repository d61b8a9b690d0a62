"""The schema of `plan.json`: what a run will take, before it is made. `make generated` writes it as JSON Schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ultimate_embedder.markup import html_table
from ultimate_embedder.types import VectorSpec

PROGRAM = "ultimate-embedder plan"
TABLE_HEADINGS = ("collection", "model", "new", "stored", "removed", "tokens", "truncated", "padding", "time")


class _Part(BaseModel):
    # a file of another version may have other fields: unknown ones are ignored
    model_config = ConfigDict(extra="ignore", protected_namespaces=(), allow_inf_nan=False)


class PlannedSeconds(_Part):
    """How long something takes: between these two, and what that rests on."""

    low: float = Field(ge=0)
    high: float = Field(ge=0)
    basis: str

    def __str__(self) -> str:
        return f"{duration(self.low)} to {duration(self.high)}"


class PlannedActivation(_Part):
    """What a batch takes on a card beside the weights."""

    rows: int
    tokens: int = Field(description="of each row")
    size_bytes: int


class PlannedModel(_Part):
    """A model, as far as it is known without its weights."""

    model: str
    hub_id: str | None
    revision: str
    weights: Literal["here", "hub", "missing"] = Field(
        description="on this machine; on the hub, from where a run will download them; or neither"
    )
    file_bytes: int = Field(description="size of the files with the weights; 0 if not known")
    download_bytes: int = Field(0, description="what a run will download")
    exact: bool = Field(True, description="false if its files are not here, and the registry stands in for them")
    note: str = ""
    dtype: str = Field("", description="number format that it is computed in")
    dim: int | None = None
    max_tokens: int | None = None
    layers: int = 0
    weight_bytes: int = Field(0, description="weights in that format")
    activations: list[PlannedActivation] = Field(default_factory=list)


class PlannedLength(_Part):
    """Texts with so many tokens, before truncation."""

    up_to: int
    texts: int
    tokens: int


class PlannedPass(_Part):
    """One model over one collection."""

    model: str
    model_pass: int
    fingerprint: str | None = Field(description="as in the summary of the run; null if it is not known yet")
    dtype: str
    devices: list[str]
    texts: int = Field(description="distinct texts in the collection")
    stored_texts: int = Field(description="texts that have a vector already")
    new_texts: int
    tokens: int = Field(description="of the new texts, after truncation")
    padded_tokens: int
    exact: bool = Field(True, description="whether tokens were counted by the model's own tokenizer")
    batches: int
    largest_batch_rows: int
    largest_batch_tokens: int
    batches_in_parts: int = Field(0, description="that have no room as a whole on a card")
    batches_too_large: int = Field(0, description="of which not even one row has room: the mitigation ladder runs them")
    truncated: int = Field(0, description="new texts beyond the token limit")
    tokens_lost: int = 0
    lost_share: float = Field(0.0, description="tokens_lost / all tokens of the new texts")
    longest_tokens: int = 0
    lengths: list[PlannedLength] = Field(default_factory=list)
    peak_bytes: dict[str, int] = Field(default_factory=dict, description="by card: most memory that is allocated")
    seconds: PlannedSeconds | None = Field(None, description="null if there is nothing to estimate it from")

    @property
    def padding(self) -> float:
        """Padding, as a share of the tokens."""
        return self.padded_tokens / self.tokens - 1 if self.tokens else 0.0


class PlannedWords(_Part):
    """BM25 over one collection: the host counts words."""

    model: str
    fingerprint: str = Field(description="as in the summary of the run")
    stored_texts: int = Field(description="texts that are counted already")
    new_texts: int
    words: int = Field(description="of the new texts, without stop words")
    values: int = Field(description="different words of each new text, added up: what the sparse vectors hold")
    seconds: PlannedSeconds | None = None


class PlannedMode(_Part):
    """A way in which the models could share the devices."""

    mode: str
    fits: bool
    why: str
    seconds: PlannedSeconds | None = Field(None, description="to encode; null if it is not known")


class PlannedCollection(_Part):
    """Everything about one collection."""

    collection: str
    error: str | None = Field(None, description="why it cannot be embedded")
    skipped: bool = Field(False, description="it has its exports, and --skip-existing is set")
    files: int = 0
    found: int = Field(0, description="records in the files")
    rejected: int = 0
    rejected_because: list[str] = Field(default_factory=list, description="the first reasons")
    distinct_texts: int = 0
    digest: str = Field("", description="of all chunks: equal for equal chunks in the same order")
    points: int = Field(0, description="points that will come out; more than chunks, if these are split")
    vectors: list[VectorSpec] = Field(default_factory=list, description="the vectors of each point")
    removed_texts: int | None = Field(None, description="texts in the last export that are gone; null if not known")
    removed_points: int | None = None
    mode: str = ""
    mode_reason: str = ""
    modes: list[PlannedMode] = Field(default_factory=list)
    passes: list[PlannedPass] = Field(default_factory=list)
    words: PlannedWords | None = Field(None, description="null without --sparse bm25")
    store_bytes: int = Field(0, description="new vectors in the store")
    export_bytes: dict[str, int] = Field(default_factory=dict, description="by kind of export")
    seconds: dict[str, PlannedSeconds] = Field(default_factory=dict, description="by stage")


class PlannedDevice(_Part):
    """A device, and what it will hold."""

    name: str
    hardware: str
    total_bytes: int
    ceiling_bytes: int = Field(description="the most that it may hold; all of the host's memory for a CPU")
    outside_bytes: int = Field(0, description="held by others: for a card that is not here, what its driver takes")
    has_ceiling: bool = True
    peak_bytes: int = Field(0, description="most memory that is allocated")
    reserved_bytes: int = Field(0, description="the same with what the allocator reserves beside it")
    fits: bool = True
    why: str = ""


class PlannedDisk(_Part):
    """Disk space."""

    folder: str
    store_bytes: int
    export_bytes: int
    scratch_bytes: int = Field(description="chunks and token ids, during the run")
    download_bytes: int = Field(0, description="models, in the cache")
    needed_bytes: int
    free_bytes: int
    fits: bool


class PlannedTime(_Part):
    """How long the run takes, stage by stage."""

    stages: dict[str, PlannedSeconds] = Field(default_factory=dict)
    total: PlannedSeconds | None = Field(None, description="null if the time of a pass is not known")
    session_seconds: float
    sessions_low: int | None = None
    sessions_high: int | None = None


class PlannedCluster(_Part):
    """The run on several nodes like the described machine: what each limit would take alone; they overlap."""

    nodes: int
    shared_output: bool = Field(False, description="whether nodes write vectors into the output themselves")
    texts: int = Field(0, description="that are to be encoded, of all passes")
    one_node: PlannedSeconds = Field(description="to encode on one such machine")
    limits: dict[str, PlannedSeconds] = Field(
        default_factory=dict,
        description="encoding cannot be faster than: nodes (they compute), driver (it stores what comes back; "
        "only where that was measured), network (of the driver)",
    )
    bottleneck: str | None = Field(None, description="the limit that takes longest; null if nothing is to be encoded")
    useful_nodes: int = Field(
        1, description="from so many on more do not help: another limit is reached, or texts are too few for them"
    )
    texts_per_second_low: float = 0.0
    texts_per_second_high: float = 0.0
    bytes_out: int = Field(0, description="texts that travel to nodes, in all passes")
    bytes_back: int = Field(0, description="vectors that come back; only keys with shared_output")
    bytes_out_per_text: float = 0.0
    bytes_back_per_text: float = 0.0


class PlannedCost(_Part):
    """What the time costs."""

    price_per_hour: float = Field(description="of one machine")
    machines: int = 1
    low: float
    high: float


class MissingFromPlan(_Part):
    """A model of which nothing is known."""

    model: str
    why: str


class Plan(_Part):
    """What a run will take: `verdict` says it in a line, `fits` and `problems` whether it can be done.

    The other fields are those of `plan.json`; docs/plan.schema.json describes them.
    """

    plan_version: Literal[1] = 1
    program: str = PROGRAM
    made_at: str = ""
    version: str = ""
    chunks: str = ""
    output: str | None = None
    command: list[str] = Field(default_factory=list, description="the command line as typed; empty if from Python")
    devices: list[PlannedDevice] = Field(default_factory=list)
    models: list[PlannedModel] = Field(default_factory=list)
    missing_models: list[MissingFromPlan] = Field(default_factory=list)
    collections: list[PlannedCollection] = Field(default_factory=list)
    disk: PlannedDisk | None = None
    time: PlannedTime | None = None
    cluster: PlannedCluster | None = Field(None, description="null unless it is planned for several nodes")
    cost: PlannedCost | None = None
    fits: bool = False
    verdict: str = ""
    problems: list[str] = Field(default_factory=list, description="why it does not fit, or what is missing")
    warnings: list[str] = Field(default_factory=list)

    def compared(self) -> dict[str, Any]:
        """What of it can be compared with a run, as plain JSON data."""
        passes = {"passes": {"__all__": {"lengths"}}}
        left_out: Any = {"models": True, "warnings": True, "collections": {"__all__": {"modes": True, **passes}}}
        return self.model_dump(mode="json", exclude=left_out)

    def __str__(self) -> str:
        return f"<Plan: {self.verdict}>"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [_cells(collection, each) for collection in self.collections for each in collection.passes]
        return html_table(self.verdict, TABLE_HEADINGS, rows, [*self.problems, *self.warnings])


def _cells(collection: PlannedCollection, each: PlannedPass) -> list[Any]:
    return [
        collection.collection,
        each.model,
        each.new_texts,
        each.stored_texts,
        "?" if collection.removed_texts is None else collection.removed_texts,
        each.tokens,
        each.truncated,
        f"{each.padding * 100:.1f} %",
        str(each.seconds) if each.seconds else "?",
    ]


def duration(seconds: float) -> str:
    """Seconds in words, with two digits: 40 s, 12 min, 3.5 h. More would be false."""
    for unit, length, most in (("s", 1, 90), ("min", 60, 5400)):
        if seconds < most:
            return f"{two_digits(seconds / length)} {unit}"
    return f"{two_digits(seconds / 3600)} h"


def byte_size(size: int) -> str:
    """Bytes with three digits: 45.4 MB, 3.65 GB."""
    for unit, length in (("GB", 10**9), ("MB", 10**6)):
        if size >= length:
            return f"{size / length:.3g} {unit}" if size < 1000 * length else f"{size / length:,.0f} {unit}"
    return f"{size / 1000:.0f} kB"


def two_digits(number: float) -> str:
    """A number rounded to two digits: 0.013, 2.5, 1,200."""
    return f"{float(f'{number:.2g}'):,.10g}"
