"""The data types that the parts of the program exchange."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

ModelKind = Literal["embedder", "sparse", "reranker"]
VectorKind = Literal["dense", "sparse"]
SparseMethod = Literal["bm25", "splade"]
ModelSource = Literal["folder", "package", "cache", "download", "refresh"]
Status = Literal[
    "completed", "partial", "failed", "skipped_no_chunks", "skipped_missing", "skipped_existing", "planned"
]

Capability = tuple[int, int]  # compute capability of a card: major, minor
UNNAMED = ""  # the name of the dense vector if points have only one


@dataclass(frozen=True)
class HnswGraph:
    """The parameters of a search graph: links per point, and candidates that are looked at to find them."""

    m: int = 16
    ef_construct: int = 100

    def __str__(self) -> str:
        return f"m={self.m},ef_construct={self.ef_construct}"


@dataclass(frozen=True)
class Chunk:
    """One text with an id, as a chunker wrote it; `record` is the rest of the record, as JSON."""

    id: str
    text: str
    record: str
    file: str
    position: int


@dataclass(frozen=True)
class Rejected:
    """A record that cannot be embedded: file, position and reason. `position` counts records from 0."""

    file: str
    position: int | None
    reason: str


@dataclass(frozen=True)
class RejectedGroup:
    """Records that were rejected for the same reason, and the first of them."""

    records: int
    reason: str
    """With N for numbers in which they differ."""
    advice: str
    file: str
    position: int | None


class LengthCounts(NamedTuple):
    """Texts of similar length: how many, how many of them beyond the token limit, their tokens, and those dropped."""

    texts: int
    overlong: int
    tokens: int
    tokens_lost: int


Lengths = dict[int, LengthCounts]
"""Texts by their number of tokens: the key is the most that a text of the bin has."""


@dataclass(frozen=True)
class Segment:
    """A piece of a text that is too long for a model: its characters from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True)
class SplitCounts:
    """How many chunks were too long and were split, and the segments that they became."""

    chunks: int = 0
    segments: int = 0

    @property
    def added(self) -> int:
        """Points that there are more than chunks."""
        return self.segments - self.chunks


@dataclass(frozen=True)
class TruncatedText:
    """A text that was truncated: the first chunk that has it, its tokens, and how many of them were dropped."""

    chunk_id: str
    file: str
    position: int
    tokens: int
    tokens_lost: int


@dataclass(frozen=True)
class DuplicateId:
    """A chunk whose id another chunk of the collection already has, and its new id."""

    chunk_id: str
    file: str
    position: int
    renamed_to: str


@dataclass(frozen=True)
class FieldsUsed:
    """Where some records of a collection have their fields."""

    text: str | None
    """None for records that are bare strings."""
    ids: str | None
    """None if the ids are made from file and text."""
    metadata: str | None
    """None if it was not moved to `metadata` from elsewhere."""
    tool: str | None
    """The tool that writes such records."""
    records: int


@dataclass(frozen=True)
class Collection:
    """A folder of chunk files; the unit of a run, of resume and of a Qdrant collection."""

    name: str
    folder: Path
    files: tuple[Path, ...]
    problem: str | None = None
    """Why it cannot be embedded, if that is known."""

    @property
    def place(self) -> Path:
        """Where it is, for messages."""
        return self.files[0] if len(self.files) == 1 else self.folder


@dataclass(frozen=True)
class Prompt:
    """A prompt that a model expects before a text: its name in the model's files, and the text if it is not there."""

    name: str
    text: str


@dataclass(frozen=True)
class ModelSpec:
    """Registry entry of a model."""

    key: str
    hub_id: str
    dim: int
    max_tokens: int
    kind: ModelKind = "embedder"
    matryoshka_dims: tuple[int, ...] = ()
    document_prompt: Prompt | None = None
    query_prompt: Prompt | None = None
    remote_code: bool = False
    pickled_weights: bool = False
    """Its repository has no safetensors: the pickle is read by torch's restricted loader, which runs no code."""
    revision: str | None = None
    aliases: tuple[str, ...] = ()
    package: str | None = None
    """The Python package that contains its files."""
    extra: str | None = None
    """The extra of this distribution that installs the package."""
    note: str = ""


@dataclass(frozen=True)
class ResolvedModel:
    """A model found on this machine. `digest` covers the bytes of all its files."""

    name: str
    spec: ModelSpec | None
    path: Path
    source: ModelSource
    revision: str
    digest: str
    size_bytes: int
    retries: int = 0
    note: str = ""


@dataclass(frozen=True)
class Bm25Settings:
    """How the words of a text are told apart and weighted; Qdrant's own BM25 takes the same settings."""

    language: str | None = "english"
    """Of stop words and stemming; None for neither."""
    tokenizer: str = "word"
    k: float = 1.2
    b: float = 0.75


@dataclass(frozen=True)
class MeasuredWay:
    """A way to compute in a low precision, measured on some texts: cosines with fp32, and speed in that of fp32."""

    quantization: str | None
    texts: int
    mean_cosine: float
    worst_cosine: float
    speed: float


@dataclass(frozen=True)
class PassIdentity:
    """Everything that affects a vector. Two passes with equal identities can share their vectors.

    Pooling, normalisation, prompts and token limit are in the model's files, and so covered by its digest.
    """

    model: str
    revision: str
    model_digest: str
    dtype: str
    max_tokens: int | None
    dim: int | None
    document_prompt: str | None
    layout: str = "padded"
    """How rows of several lengths lie in a batch: padded, or packed end to end where the model can."""
    encoder_version: int = 2
    overlong: str = "truncate"
    """What becomes of a text beyond the token limit: `truncate`, or `pool`, the mean of its segments."""
    overlap: int | None = None
    """Tokens that segments share, if they are pooled and it was asked for."""
    kind: VectorKind = "dense"
    bm25: Bm25Settings | None = None
    """How words are counted, if that is what the pass does; the vectors of its store are counts, not weights."""
    quantization: str | None = None
    """How int8 products are computed (`models/int8.py`); None where they are not, or as ONNX Runtime does it."""

    def as_dict(self) -> dict[str, Any]:
        """Its fields; what earlier versions did not know is left out where it says nothing."""
        fields = dataclasses.asdict(self)
        if self.overlong == "truncate":
            del fields["overlong"], fields["overlap"]
        if self.kind == "dense":
            del fields["kind"]
        if self.bm25 is None:
            del fields["bm25"]
        if self.quantization is None:
            del fields["quantization"]
        return fields


@dataclass(frozen=True)
class VectorSpec:
    """A vector that every point has: its name ('' for the only one), its dimension (null if sparse) and its kind."""

    name: str
    dim: int | None
    kind: VectorKind = "dense"

    @property
    def is_sparse(self) -> bool:
        """Whether it is a list of indices and values."""
        return self.kind == "sparse"

    def __str__(self) -> str:
        return f"{self.name} {self.dim or self.kind}".strip()


@dataclass(frozen=True)
class SparseFacts:
    """A sparse vector of every point of a collection, and what is needed to encode queries for it."""

    name: str
    method: SparseMethod
    fingerprint: str
    """Of the pass that made it."""
    model: str
    digest: str
    """Of the model's files; for BM25 of what the engine makes of some texts."""
    modifier: Literal["idf"] | None
    """What Qdrant multiplies the values of a query with."""
    values_per_point: float
    empty: int
    """Points whose vector has no values: their texts have no known words."""
    bm25: Bm25Settings | None = None
    avg_len: float | None = None
    """Mean number of words of a chunk, by which BM25 has weighted them."""


@dataclass(frozen=True)
class MemorySnapshot:
    """Memory of one device at one moment. Peaks count since they were last reset."""

    device: str
    total_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    peak_reserved_bytes: int
    external_bytes: int
    """Memory that other processes use."""
    ceiling_bytes: int
    """The limit of reserved + context + external memory."""
    context_bytes: int = 0
    """Memory that this process uses outside the allocator, as far as that is known: the driver's context."""

    @property
    def outside_bytes(self) -> int:
        """Memory that the allocator cannot have, whoever uses it."""
        return self.external_bytes + self.context_bytes

    @property
    def usable_bytes(self) -> int:
        """What the next allocation can use: free or cached memory, under the ceiling."""
        cached = self.reserved_bytes - self.allocated_bytes
        under_ceiling = self.ceiling_bytes - self.outside_bytes - self.allocated_bytes
        return max(0, min(self.free_bytes + cached, under_ceiling))


@dataclass(frozen=True)
class DeviceFacts:
    """A device that a run may use."""

    name: str
    hardware: str
    """What it is, as its maker calls it."""
    workers: int
    """How many batches are computed there at the same time."""
    total_bytes: int
    ceiling_bytes: int


LONGEST_NUMBER = 10  # digits: names come from logs too


def device_on(node: str, device: str) -> str:
    """The name of a device of a node of a cluster: `node-2/card:0`."""
    return f"{node}/{device}"


def node_of(device: str) -> str | None:
    """The node that a device is on; None for a device of this machine."""
    node, slash, _ = device.partition("/")
    return node if slash else None


def by_node(device: str) -> tuple[str, int]:
    """Sorts devices by their nodes, `node-10` after `node-9`; those of a node stay in their order."""
    name, _, digits = (node_of(device) or "").rpartition("-")
    return name, int(digits) if digits.isdecimal() and len(digits) < LONGEST_NUMBER else 0


def is_cpu(device: str) -> bool:
    """Whether this is the name of a CPU, here or on a node: it has no ceiling."""
    return device.rpartition("/")[2] == "cpu"


@dataclass(frozen=True)
class ExportedFile:
    """One finished export: a file or a folder."""

    kind: str
    path: Path
    size_bytes: int
    sha256: str
    rows: int
    details: Mapping[str, Any] = field(default_factory=dict)


class Stream(Protocol):
    """A stream of a device: its operations run in order, those of several streams at the same time."""

    def wait_event(self, event: Any) -> None:
        """Let later operations wait for the event."""
        ...

    def wait_stream(self, stream: Any) -> None:
        """Let later operations wait for everything that was queued on the other stream until now."""
        ...


class StreamEvent(Protocol):
    """An event that a stream can record."""

    def record(self, stream: Any) -> None:
        """Record the event after everything that was queued on the stream until now."""
        ...


class ModelDevice(Protocol):
    """What the code of a model needs of the device that it runs on."""

    torch_device: torch.device
    has_ceiling: bool
    """Whether its memory limits the size of batches; False for the CPU."""

    @property
    def capability(self) -> Capability | None:
        """The compute capability of a card, which decides the kernels that it has; None for the CPU."""
        ...

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means out of memory."""
        ...

    def release_cache(self) -> None:
        """Release cached memory, so that others can use it."""
        ...

    def current_stream(self) -> Stream:
        """The stream on which this thread computes."""
        ...

    def side_stream(self) -> Stream:
        """A new stream, for copies during computation."""
        ...

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue operations on that stream within the block."""
        ...

    def event(self) -> StreamEvent:
        """An event that streams can record and wait for; waiting for one that was never recorded does nothing."""
        ...

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in pinned host memory, if the device supports it."""
        ...
