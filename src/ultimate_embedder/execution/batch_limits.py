"""How large the batches of a pass may be, by model and device; the same for a run and for a plan of it."""

from __future__ import annotations

from typing import Protocol

from ultimate_embedder.batching import BATCH_TOKENS, BatchLimits, card_batch_tokens
from ultimate_embedder.devices import peak_half_flops
from ultimate_embedder.models import Encoder, aligned_length
from ultimate_embedder.planning import PassPlan
from ultimate_embedder.types import Capability


class BatchDevice(Protocol):
    """What batches depend on of a device."""

    @property
    def fixed_budget_tokens(self) -> int | None:
        """Padded tokens of a batch where speed decides; None where memory does."""
        ...

    @property
    def lanes(self) -> int:
        """How many devices a batch is split over."""
        ...

    @property
    def capability(self) -> Capability | None:
        """The compute capability of a card."""
        ...


def batch_limits(plan: PassPlan, device: BatchDevice, encoder: Encoder) -> BatchLimits:
    """How large batches may be: as asked for, else what suits model and device; shared by all workers of a pass."""
    tokens = plan.batch_tokens or device.fixed_budget_tokens or _card_tokens(encoder, device)
    fixed = plan.batch_tokens is not None or device.fixed_budget_tokens is not None
    layout = plan.identity.layout
    return BatchLimits(
        tokens * device.lanes,
        fixed,
        min(plan.batch_rows or encoder.most_rows, encoder.most_rows) if encoder.most_rows else plan.batch_rows,
        avoid_padding=layout != "packed",
        padded_length=aligned_length if layout == "bucketed" else int,
    )


def _card_tokens(encoder: Encoder, device: BatchDevice) -> int:
    if device.capability is None or not encoder.layers:
        return BATCH_TOKENS
    return card_batch_tokens(encoder.layers, encoder.layer_weights, peak_half_flops(device.capability))
