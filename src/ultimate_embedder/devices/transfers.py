"""Batches on their way to a card and their results on the way back, beside what the card computes.

Nothing is freed while the card may have work to do. torch records an event on the card where it frees pinned memory, or
memory that was marked with `record_stream`; on a card that has died meanwhile this fails in a destructor and ends the
process. So pinned memory is used again and again, and what a batch needs is held until its results have arrived.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultimate_embedder.devices.base import Features, Fetch
from ultimate_embedder.types import ModelDevice

if TYPE_CHECKING:
    import numpy as np
    import torch


class Transfers:
    """The copies of one card. Who sends and fetches holds the card's lock; who waits for results need not."""

    def __init__(self, card: ModelDevice, blocking_event: Callable[[], Any]) -> None:
        """`blocking_event` makes an event whose waiters leave the core to others."""
        self._card: ModelDevice = weakref.proxy(card)  # it owns this
        self._blocking_event = blocking_event
        # one for each way: a batch must not wait on its way in for the results of the one before
        self._sending, self._fetching = card.side_stream(), card.side_stream()
        self._buffers = _PinnedBuffers(self._card)
        self._numbers = itertools.count()
        self._under_way: dict[int, _Arrival] = {}

    def send(self, features: Features) -> Features:
        """Start to copy a batch from pinned memory. What is sent must be held until the results are there: `fetch`."""
        import torch

        sent, staged = dict(features), {}
        for name, value in features.items():
            if isinstance(value, torch.Tensor):
                staged[name] = self._buffers.take(value.nbytes)
                staged[name].like(value).copy_(value)
        try:
            with self._card.use_stream(self._sending):
                for name, buffer in staged.items():
                    sent[name] = buffer.like(features[name]).to(self._card.torch_device, non_blocking=True)
            self._card.current_stream().wait_stream(self._sending)
        finally:
            copied = self._card.event()
            copied.record(self._sending)
            for buffer in staged.values():
                self._buffers.give_back(buffer, copied)
        return sent

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Compute with what was sent; if that fails its memory is used again only afterwards."""
        try:
            yield
        except Exception:
            self._sending.wait_stream(self._card.current_stream())
            raise

    def fetch(self, vectors: torch.Tensor, used: Any) -> Fetch:
        """Start to copy results into pinned memory; `used` is held until they are there."""
        self._fetching.wait_stream(self._card.current_stream())
        buffer = self._buffers.take(vectors.nbytes)
        with self._card.use_stream(self._fetching):
            host = buffer.like(vectors)
            host.copy_(vectors, non_blocking=True)
            fetched = self._blocking_event()
            fetched.record(self._fetching)
        number = next(self._numbers)

        def wait() -> np.ndarray:
            fetched.synchronize()
            found: np.ndarray = host.numpy().copy()
            self._buffers.give_back(buffer)
            self._under_way.pop(number)
            return found

        arrival = self._under_way[number] = _Arrival(wait, (vectors, used))
        return arrival

    def release(self) -> None:
        """Unpin everything, while the card has nothing to do."""
        for arrival in list(self._under_way.values()):
            arrival()  # of a batch that nobody wanted any more
        self._buffers.release()


class _Arrival:
    """Results that are on their way; called, it waits for them."""

    def __init__(self, wait: Callable[[], np.ndarray], held: Any) -> None:
        self._wait: Callable[[], np.ndarray] | None = wait
        self._held = held
        self._vectors: np.ndarray | None = None

    def __call__(self) -> np.ndarray:
        if self._wait is not None:
            self._vectors = self._wait()
            self._wait = self._held = None
        assert self._vectors is not None
        return self._vectors


@dataclass(frozen=True)
class _Buffer:
    """Pinned memory, or ordinary memory where there is none."""

    memory: torch.Tensor
    free_from: Any = None
    """The event of the last copy from it."""

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in this memory, of the same shape and type."""
        return self.memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)


class _PinnedBuffers:
    """Pinned memory in sizes of powers of two, as torch pins it; what is not taken waits for the next batch."""

    def __init__(self, card: ModelDevice) -> None:
        self._card = card
        self._owned: list[torch.Tensor] = []  # nothing is freed because somebody drops it
        self._waiting: dict[int, deque[_Buffer]] = {}  # single operations on it only: no lock

    def take(self, size: int) -> _Buffer:
        """A buffer of at least this size that no copy uses."""
        import torch

        size = 1 << max(0, size - 1).bit_length()
        waiting = self._waiting.setdefault(size, deque())
        with contextlib.suppress(IndexError):
            oldest = waiting.popleft()
            if oldest.free_from is None or oldest.free_from.query():
                return oldest
            waiting.appendleft(oldest)
        memory = self._card.pin(torch.empty(size, dtype=torch.uint8))
        self._owned.append(memory)
        return _Buffer(memory)

    def give_back(self, buffer: _Buffer, free_from: Any = None) -> None:
        """Let a buffer be used again, after the event if there is one."""
        self._waiting[buffer.memory.nbytes].append(_Buffer(buffer.memory, free_from))

    def release(self) -> None:
        """Unpin all."""
        self._waiting.clear()
        self._owned.clear()
