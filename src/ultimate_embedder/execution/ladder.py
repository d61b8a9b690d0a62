"""The mitigation ladder: what is done, in this order, so that a run never dies of out-of-memory.

Before a batch (`batching/controller.py`) the next one is made smaller, before the margin is crossed; it grows back when
the pressure is gone. After an out-of-memory error `LADDER` is climbed, for the batch that failed and no other. When
nothing helped the collection fails, and keeps what is done. `MITIGATIONS` lists all
kinds of decisions that are recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ultimate_embedder.devices import Device
from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.execution.host import encode_on_host
from ultimate_embedder.models import (
    LoadedModel,
    NotApplicableError,
    TokenizedTexts,
    attention_in_pieces,
    chunked_feed_forward,
    small_pieces,
    where_applicable,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Mitigation:
    """A kind of decision that changed a batch, a place or a precision."""

    kind: str
    sentence: str


Report = Callable[[Mitigation, dict[str, Any]], None]
"""Told of each decision, with details: always a `reason`, and numbers before and after where there are any."""


class NothingHelpedError(UltimateEmbedderError):
    """Not even the last rung could run a batch."""


class Companion(Protocol):
    """Another model that may be on the device, and can make room."""

    pauses: int

    @property
    def device(self) -> Device:
        """Where it works."""
        ...

    def pause(self, reason: str) -> bool:
        """Take the weights off the device until there is room for them; False if there were none."""

    def move_away(self, reason: str) -> bool:
        """Leave the device for good; False if that is not possible now."""


@dataclass(frozen=True)
class RanOn:
    """Where some consecutive rows of a batch were computed, and in what."""

    device: str
    dtype: str
    rows: int


@dataclass(frozen=True)
class Climbed:
    """Vectors of a batch that did not fit, and where its rows were computed, in their order."""

    vectors: np.ndarray
    ran_on: tuple[RanOn, ...]
    rung: str = ""
    """The kind of the rung that helped."""


@dataclass(frozen=True)
class Situation:
    """A batch that does not fit, and everything a rung may need to run it all the same."""

    encoder: LoadedModel
    device: Device
    texts: TokenizedTexts
    rows: np.ndarray
    fp32_encoder: Callable[[], LoadedModel]
    encode_part: Callable[[np.ndarray], Climbed]
    streaming: Callable[[], AbstractContextManager[None]]
    """What a forward runs in whose layers' weights stay on the host."""
    companions: Sequence[Companion] = ()
    too_large: Callable[[], None] = lambda: None
    """Told when a rung runs out of memory for several rows."""

    why: str = "out of memory"
    """Why it cannot be run as it is."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.texts.lengths[self.rows].max())

    @property
    def needs_room(self) -> str:
        """Why others are asked to make room."""
        return f"{self.encoder.name} needs the room: {len(self.rows)} x {self.longest} tokens ran out of memory"

    def forward(self) -> Climbed:
        """Run the batch as it is, on the device."""
        vectors = np.asarray(self.encoder.forward(self.encoder.batch(self.texts, self.rows)).cpu().numpy())
        return self._climbed(vectors, self.device.name, self.encoder.dtype)

    def forward_on_cpu(self) -> Climbed:
        """Run the batch on the host, in fp32."""
        vectors = encode_on_host(self.fp32_encoder, self.texts, self.rows)
        return self._climbed(vectors, "cpu", self.fp32_encoder().dtype)

    def _climbed(self, vectors: np.ndarray, device: str, dtype: str) -> Climbed:
        return Climbed(vectors, (RanOn(device, dtype, len(self.rows)),))


@dataclass(frozen=True)
class Rung(Mitigation):
    """One way to run a batch that does not fit; raises `NotApplicableError` where it is none."""

    run: Callable[[Situation], Climbed]

    @property
    def name(self) -> str:
        """A word for it."""
        return self.kind.removeprefix("oom_")


def _pause_companions(situation: Situation) -> Climbed:
    here = [companion for companion in situation.companions if companion.device is situation.device]
    paused = [companion.pause(situation.needs_room) for companion in here if not companion.pauses]
    if not any(paused):
        raise NotApplicableError("no other model on the device that has not waited before")
    return situation.forward()


def _move_companions(situation: Situation) -> Climbed:
    here = [companion for companion in situation.companions if companion.device is situation.device]
    moved = [companion.move_away(situation.needs_room) for companion in here if companion.pauses]
    if not any(moved):
        raise NotApplicableError("no other model on the device that could move")
    return situation.forward()


def _bisect(situation: Situation) -> Climbed:
    rows = situation.rows
    if len(rows) < 2:
        raise NotApplicableError("one text cannot be halved")
    middle = len(rows) // 2
    first, second = situation.encode_part(rows[:middle]), situation.encode_part(rows[middle:])
    return Climbed(np.concatenate([first.vectors, second.vectors]), first.ran_on + second.ran_on)


def _retry(situation: Situation) -> Climbed:
    # here alone: torch's allocator drops its cache of the device by itself before it gives up. What it cannot help are
    # allocations beside it (workspaces and kernels of vendor libraries), and for one text nothing cheaper is left.
    # It waits for all cards of the process and empties all their caches, so no other rung does it
    situation.device.release_cache()
    return situation.forward()


def _chunk(situation: Situation) -> Climbed:
    model = situation.encoder.model
    with where_applicable(small_pieces(model)), chunked_feed_forward(model):
        return situation.forward()


def _attention(situation: Situation) -> Climbed:
    model = situation.encoder.model
    with attention_in_pieces(model), _small_tokens(model):
        return situation.forward()


@contextlib.contextmanager
def _small_tokens(model: torch.nn.Module) -> Iterator[None]:
    """Feed-forward and vocabulary head a few tokens at a time, where the model has them."""
    with where_applicable(small_pieces(model)), where_applicable(chunked_feed_forward(model)):
        yield


def _stream(situation: Situation) -> Climbed:
    model = situation.encoder.model

    def forward() -> Climbed:
        with situation.streaming(), _small_tokens(model):
            return situation.forward()

    try:
        with attention_in_pieces(model):
            return forward()
    except NotApplicableError:
        return forward()


def _cpu(situation: Situation) -> Climbed:
    return situation.forward_on_cpu()


STREAM = Rung("oom_stream", "the layers' weights stay on the host and are brought to the device one by one", _stream)
BISECT = Rung("oom_bisect", "the batch is halved; the size that was too much is remembered", _bisect)
RETRY = Rung("oom_retry", "a single text is run once more, after the device's cache was released", _retry)
CPU = Rung("oom_cpu", "this batch is run on the CPU, in fp32", _cpu)
LADDER: tuple[Rung, ...] = (
    Rung("oom_pause_companions", "other models on the device wait on the host until there is room", _pause_companions),
    Rung(
        "oom_move_companions",
        "a companion that had to wait before moves to another GPU with room, else to the CPU",
        _move_companions,
    ),
    BISECT,
    RETRY,
    Rung("oom_chunk", "the feed-forward, and a vocabulary head, are run a few tokens at a time", _chunk),
    Rung("oom_attention", "attention too is run a few tokens at a time", _attention),
    STREAM,
    CPU,
)
# while the weights themselves have no room on the device
WITHOUT_WEIGHTS: tuple[Rung, ...] = (STREAM, BISECT, CPU)
NEED_NO_WEIGHTS = frozenset({STREAM.kind, CPU.kind})
# what a length needs that has no room otherwise: the next batch of it goes there at once
LASTING = frozenset(rung.kind for rung in LADDER[LADDER.index(RETRY) :])

BATCH_REDUCED = Mitigation("adaptive_batch_reduce", "batches are smaller than planned: the device has no room for more")
BATCH_GROWN = Mitigation("adaptive_batch_grow", "batches are as large as planned again: memory is free again")
BATCH_REDUCED_AFTER_OOM = Mitigation(
    "adaptive_batch_reduce_after_oom", "batches are smaller from here on: one ran out of memory"
)
COMPANION_PAUSED = Mitigation(
    "companion_paused", "a companion's weights left the device, to come back when there is room"
)
COMPANION_TO_GPU = Mitigation("companion_gpu_routed", "a companion works on another GPU than the primary")
COMPANION_TO_CPU = Mitigation("companion_cpu_fallback", "a companion works on the CPU: no GPU has room for it")
WEIGHTS_BACK = Mitigation("weights_back", "weights that had left the device are on it again")
WEIGHTS_ON_HOST = Mitigation("weights_on_host", "no device has room for the weights: they stay on the host")
DEVICE_WITHOUT_ROOM = Mitigation("device_without_room", "a device is not used: it has no room for the weights")
DEVICE_LOST = Mitigation("device_lost", "a device stopped working: others do what it had begun, and the rest")
FRESH_PROCESS = Mitigation("fresh_process", "every device was lost to this process: a fresh one goes on with them")
NO_DEVICE_LEFT = Mitigation("no_device_left", "every GPU is lost: the rest is computed on the CPU, in fp32")
FP32_RERUN = Mitigation("fp32_rerun", "rows with unusable vectors were computed again in fp32, on the host")
PASS_IN_FP32 = Mitigation("pass_in_fp32", "too many vectors are unusable in fp16: the pass begins again, in fp32")

NODE_LOST = Mitigation("node_lost", "the process on a node of the cluster is gone: other nodes do its texts")
ANSWER_LOST = Mitigation("answer_lost", "vectors were lost on their way from a node: they are computed again")
UNIT_SPLIT = Mitigation("unit_split", "processes end while they encode some texts: these are tried in halves")
TEXT_GIVEN_UP = Mitigation("text_given_up", "processes end while they encode one text: it is rejected")

MITIGATIONS: tuple[Mitigation, ...] = (
    BATCH_REDUCED,
    BATCH_GROWN,
    BATCH_REDUCED_AFTER_OOM,
    *LADDER,
    COMPANION_PAUSED,
    COMPANION_TO_GPU,
    COMPANION_TO_CPU,
    WEIGHTS_BACK,
    WEIGHTS_ON_HOST,
    DEVICE_WITHOUT_ROOM,
    DEVICE_LOST,
    FRESH_PROCESS,
    NO_DEVICE_LEFT,
    FP32_RERUN,
    PASS_IN_FP32,
    NODE_LOST,
    ANSWER_LOST,
    UNIT_SPLIT,
    TEXT_GIVEN_UP,
)


def rungs_from(kind: str) -> tuple[Rung, ...]:
    """The ladder from that rung on; if several texts are too much for it, it is tried with fewer first."""
    number = [rung.kind for rung in LADDER].index(kind)
    return LADDER[number], BISECT, *LADDER[number + 1 :]


def climb(situation: Situation, rungs: tuple[Rung, ...], report: Report) -> Climbed:
    """Go up the ladder until the batch is done."""
    refusals = []
    for rung in rungs:
        try:
            climbed = rung.run(situation)
        except NotApplicableError as error:
            refusals.append(f"{rung.name}: {error}")
            continue
        except Exception as error:
            if not situation.device.is_out_of_memory(error):
                raise
            refusals.append(f"{rung.name}: out of memory")
            error.__traceback__ = None  # it holds the failed activations
            if len(situation.rows) > 1:
                situation.too_large()
            continue
        report(
            rung,
            {
                "reason": "; ".join([situation.why, *refusals]),
                "rows": len(situation.rows),
                "rows_after": max(part.rows for part in climbed.ran_on),
                "longest": situation.longest,
            },
        )
        return replace(climbed, rung=rung.kind)
    raise NothingHelpedError(
        f"a batch of {len(situation.rows)} x {situation.longest} tokens cannot be run: {'; '.join(refusals)}. "
        "Lower --max-tokens, or free memory, and run the same command again: what is done is kept."
    )
