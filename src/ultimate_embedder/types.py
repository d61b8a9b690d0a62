"""The dictionary: the nouns that the parts of the program exchange."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

ModelKind = Literal["embedder", "reranker"]
VectorKind = Literal["dense", "sparse"]
ModelSource = Literal["folder", "package", "cache", "download", "refresh"]
Status = Literal[
    "completed", "partial", "failed", "skipped_no_chunks", "skipped_missing", "skipped_existing", "planned"
]

UNNAMED = ""  # the name of a vector where points have just one


@dataclass(frozen=True)
class Chunk:
    """One text with an id, as a chunker wrote it; `record` is everything else that stood beside the text, as JSON."""

    id: str
    text: str
    record: str
    file: str
    position: int


@dataclass(frozen=True)
class Rejected:
    """A record that cannot be embedded: where it stands and why. `position` counts records from 0."""

    file: str
    position: int | None
    reason: str


@dataclass(frozen=True)
class RepeatedId:
    """A chunk whose id another chunk of the collection already has, and the id it got instead."""

    chunk_id: str
    file: str
    position: int
    renamed_to: str


@dataclass(frozen=True)
class Collection:
    """A folder of chunk files; the unit of a run, of resume and of a Qdrant collection."""

    name: str
    folder: Path
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Prompt:
    """What a model wants in front of a text: the name in its own files, and the text if they lack it."""

    name: str
    text: str


@dataclass(frozen=True)
class ModelSpec:
    """Registry entry of a model: plain data, no behaviour."""

    key: str
    hub_id: str
    dim: int
    max_tokens: int
    kind: ModelKind = "embedder"
    matryoshka_dims: tuple[int, ...] = ()
    document_prompt: Prompt | None = None
    query_prompt: Prompt | None = None
    remote_code: bool = False
    revision: str | None = None
    aliases: tuple[str, ...] = ()
    package: str | None = None
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
class PassIdentity:
    """Everything that changes a vector. Two passes with equal identities may share their vectors.

    Pooling, normalisation, the model's own prompts and token limit live in its files, hence in its digest.
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


@dataclass(frozen=True)
class VectorSpec:
    """A vector that every point has: its name ('' for the only one), its dimension (null if sparse) and its kind."""

    name: str
    dim: int | None
    kind: VectorKind = "dense"


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
    """What other processes hold."""
    ceiling_bytes: int
    """The most that reserved + external may be."""

    @property
    def usable_bytes(self) -> int:
        """What the next allocation can really use: free or cached, and under the ceiling."""
        cached = self.reserved_bytes - self.allocated_bytes
        under_ceiling = self.ceiling_bytes - self.external_bytes - self.allocated_bytes
        return max(0, min(self.free_bytes + cached, under_ceiling))


@dataclass(frozen=True)
class ExportedFile:
    """One finished export: a file, or a folder where the format is one."""

    kind: str
    path: Path
    size_bytes: int
    sha256: str
    rows: int
    details: Mapping[str, Any] = field(default_factory=dict)


class Stream(Protocol):
    """A queue of work on a device; the work of one queue is done in order, that of several at the same time."""

    def wait_event(self, event: Any) -> None:
        """Do what is asked for later only after the event has happened."""
        ...

    def wait_stream(self, stream: Any) -> None:
        """Do what is asked for later only after all that the other stream has been asked for until now."""
        ...


class StreamEvent(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: Any) -> None:
        """Put the point behind all that the stream has been asked for until now."""
        ...


class ModelDevice(Protocol):
    """What the code of a model needs to know of the device that it runs on."""

    torch_device: torch.device
    has_ceiling: bool
    """Whether its memory is limited and decides what can be run; False for the CPU."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means that there is no room."""
        ...

    def release_cache(self) -> None:
        """Give unused memory back to whoever else wants it."""
        ...

    def current_stream(self) -> Stream:
        """The stream that computes, on this thread."""
        ...

    def side_stream(self) -> Stream:
        """A new stream for copies beside what the device computes."""
        ...

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Ask for work on that stream meanwhile."""
        ...

    def event(self) -> StreamEvent:
        """An event that streams can record and wait for; one that was never recorded is not waited for."""
        ...

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host in memory that the device can copy from and to by itself, where there is any."""
        ...
