"""The mitigation ladder: what is done, in this order, so that a run never dies of out-of-memory.

Before a batch (`batching/controller.py`):
    shrink          the next batch is cut smaller, before the margin is crossed; it grows back when pressure is gone
After an out-of-memory error, for the batch that failed and no other (the list below):
    pause_companions   the other models on the device wait on the host, and come back when there is room
    move_companions    one that had to wait before moves to another device with room, else to the CPU
    bisect          free, halve the batch, remember the size that is safe
    retry           a single text: free what is cached and try once more
    chunk           run the feed-forward a few tokens at a time
    stream          keep the layers' weights on the host and bring them one by one
    cpu             run this batch on the CPU
When nothing helped the collection fails, and keeps what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ultimate_embedder.devices import Device
from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.models import (
    LoadedModel,
    NotApplicableError,
    TokenizedTexts,
    chunked_feed_forward,
    streamed_layers,
)

Report = Callable[[str, dict[str, Any]], None]


class NothingHelpedError(UltimateEmbedderError):
    """Not even the last rung could run a batch."""


class Companion(Protocol):
    """Another model that may be on the device, and can make room."""

    device: Device
    pauses: int

    def pause(self) -> bool:
        """Take the weights off the device until there is room for them; False if there were none."""

    def move_away(self) -> bool:
        """Leave the device for good; False if that is not possible now."""


@dataclass(frozen=True)
class Situation:
    """A batch that does not fit, and everything a rung may need to run it all the same."""

    encoder: LoadedModel
    device: Device
    texts: TokenizedTexts
    rows: np.ndarray
    exact_encoder: Callable[[], LoadedModel]
    encode_part: Callable[[np.ndarray], np.ndarray]
    companions: Sequence[Companion] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.texts.lengths[self.rows].max())

    def forward(self, encoder: LoadedModel | None = None) -> np.ndarray:
        """Run the batch as it is."""
        encoder = encoder or self.encoder
        return np.asarray(encoder.forward(encoder.batch(self.texts, self.rows)).cpu().numpy())


def pause_companions(situation: Situation) -> np.ndarray:
    """Run the batch while the device's other models wait on the host."""
    here = [companion for companion in situation.companions if companion.device is situation.device]
    paused = [companion.pause() for companion in here if not companion.pauses]
    if not any(paused):
        raise NotApplicableError("no other model on the device that has not waited before")
    situation.device.release_cache()
    return situation.forward()


def move_companions(situation: Situation) -> np.ndarray:
    """Run the batch after the device's other models have gone to other devices."""
    here = [companion for companion in situation.companions if companion.device is situation.device]
    moved = [companion.move_away() for companion in here if companion.pauses]
    if not any(moved):
        raise NotApplicableError("no other model on the device that could go")
    situation.device.release_cache()
    return situation.forward()


def bisect(situation: Situation) -> np.ndarray:
    """Run the two halves one after the other."""
    rows = situation.rows
    if len(rows) < 2:
        raise NotApplicableError("one text cannot be halved")
    middle = len(rows) // 2
    return np.concatenate([situation.encode_part(rows[:middle]), situation.encode_part(rows[middle:])])


def retry(situation: Situation) -> np.ndarray:
    """Once more, with nothing cached."""
    return situation.forward()


def chunk(situation: Situation) -> np.ndarray:
    """The feed-forward a few tokens at a time."""
    with chunked_feed_forward(situation.encoder.model):
        return situation.forward()


def stream(situation: Situation) -> np.ndarray:
    """The layers' weights one by one, the feed-forward in pieces."""
    model = situation.encoder.model
    with streamed_layers(model, situation.device), chunked_feed_forward(model):
        return situation.forward()


def cpu(situation: Situation) -> np.ndarray:
    """This batch on the CPU, in fp32."""
    return situation.forward(situation.exact_encoder())


Rung = Callable[[Situation], np.ndarray]
LADDER: tuple[Rung, ...] = (pause_companions, move_companions, bisect, retry, chunk, stream, cpu)
# while the weights themselves have no room on the device
WITHOUT_WEIGHTS: tuple[Rung, ...] = (stream, bisect, cpu)


def climb(situation: Situation, rungs: tuple[Rung, ...], report: Report) -> np.ndarray:
    """Go up the ladder until the batch is done."""
    refusals = []
    for rung in rungs:
        # here and not in an `except` block: there the traceback would still hold the failed activations
        situation.device.release_cache()
        try:
            vectors = rung(situation)
        except NotApplicableError as error:
            refusals.append(f"{rung.__name__}: {error}")
            continue
        except Exception as error:
            if not situation.device.is_out_of_memory(error):
                raise
            refusals.append(f"{rung.__name__}: out of memory")
            error.__traceback__ = None
            continue
        report(f"oom_{rung.__name__}", {"rows": len(situation.rows), "longest": situation.longest})
        return vectors
    raise NothingHelpedError(
        f"a batch of {len(situation.rows)} x {situation.longest} tokens cannot be run: {'; '.join(refusals)}. "
        "Lower --max-tokens, or free memory, and run the same command again: what is done is kept."
    )
