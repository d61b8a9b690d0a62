"""What every device can do, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from ultimate_embedder.locks import OrderedLock
from ultimate_embedder.types import MemorySnapshot, ModelDevice

if TYPE_CHECKING:
    import numpy as np
    import torch

Features = Mapping[str, Any]
Fetch = Callable[[], "np.ndarray"]


class Mark(Protocol):
    """A point in the work of a device, which may be behind what it has been asked to do."""

    def seconds_since(self, earlier: Any) -> float:
        """Time between two points that the device has passed."""
        ...


class Device(ModelDevice, Protocol):
    """One place where a model can run."""

    name: str
    """As torch spells it: `cpu`, or kind and index."""
    fixed_budget_tokens: int | None
    """Padded tokens of a batch where speed decides; None where memory does."""
    runs_ahead: bool
    """Whether a forward returns before it is done, so that another can be prepared meanwhile."""
    lanes: int
    """How many devices a batch is split over: one, unless this is a group."""
    ceiling_reason: str
    """What set the most that it may hold."""
    workers: int
    """How many batches are computed there at the same time: one, or one for each core of a CPU."""
    has_vnni: bool
    """Whether it is a CPU that has instructions for int8 products."""
    lock: OrderedLock
    """Held during a forward: two at once on one device would only fight for its memory."""

    @property
    def hardware(self) -> str:
        """What it is, as its maker calls it."""
        ...

    @property
    def lost(self) -> str | None:
        """Why it can do nothing more for this process; None while it can."""
        ...

    @property
    def hangs(self) -> bool:
        """Whether it was given up because it does not answer: whoever asked it may wait for ever."""
        ...

    def parts(self) -> Sequence[Device]:
        """What works at the same time, each on batches of its own: the device itself, or the cores of a CPU."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """What the thread of a worker runs in."""
        ...

    def send(self, features: Features) -> Features:
        """Start to copy a batch to the device, beside what it computes; work that is asked for later waits for it."""
        ...

    def in_use(self, sent: Features) -> AbstractContextManager[None]:
        """What is computed with a batch that was sent; its memory is safe, also if that fails or the device is lost."""
        ...

    def fetch(self, vectors: torch.Tensor, used: Any = None) -> Fetch:
        """Start to copy results to the host when they are there; the function given waits for them.

        `used` is what they are computed from: it is held until then.
        """
        ...

    def mark(self) -> Mark:
        """The point that the device will be at when it has done all that it has been asked to do."""
        ...

    def snapshot(self) -> MemorySnapshot:
        """Memory at this moment."""
        ...

    def reset_peak(self) -> None:
        """Measure peaks from here."""
        ...

    def hold_ceiling(self) -> MemorySnapshot:
        """Make the allocator itself keep the ceiling; gives the memory as it then is."""
        ...

    def lift_ceiling(self) -> None:
        """Let the allocator have the whole device again, for others in this process."""
        ...

    def release_workspaces(self) -> None:
        """Let libraries give back the memory that they keep for later; only while nobody computes on any device."""
        ...

    @property
    def last_snapshot(self) -> MemorySnapshot:
        """Memory when it was last read, without asking the device, which may hang."""
        ...

    def is_lost(self, error: BaseException) -> bool:
        """Whether an error means that the device can do nothing more for this process."""
        ...

    def works(self) -> bool:
        """Whether the device still computes: tries it."""
        ...

    def retire(self, reason: str, *, hangs: bool = False) -> None:
        """Ask nothing of the device any more. Reading its memory gives none; releasing it does nothing."""
        ...

    def dtype(self, precision: str) -> str:
        """The number format that `precision` (auto, fp32, fp16) means here."""
        ...
