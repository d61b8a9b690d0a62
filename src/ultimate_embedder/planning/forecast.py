"""What a card will hold during a pass: a pure function of the model's weights, its batches and the memory model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ultimate_embedder.batching import EXPECTED_RESERVE_RATIO, Layout, MemoryModel, decide
from ultimate_embedder.types import MemorySnapshot

WORKSPACE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024  # of cuBLAS, per thread that computes; 32 MiB on Hopper
HOPPER_WORKSPACE_BYTES = 32 << 20
LEAST_WORKSPACES = 64  # in a card: those of simulated ones that are small are smaller


@dataclass(frozen=True)
class CardRoom:
    """The memory of a card: all of it, what of it may be held, and what others hold."""

    total_bytes: int
    ceiling_bytes: int
    outside_bytes: int = 0
    is_hopper: bool = False

    @property
    def usable_bytes(self) -> int:
        """What models may take."""
        return max(0, self.ceiling_bytes - self.outside_bytes)

    @property
    def workspace_bytes(self) -> int:
        """What the library of matrix products keeps."""
        wanted = HOPPER_WORKSPACE_BYTES if self.is_hopper else WORKSPACE_BYTES
        return min(wanted, self.total_bytes // LEAST_WORKSPACES)


@dataclass(frozen=True)
class BatchShape:
    """Batches of one size: rows, tokens that each is padded to, and how many such batches there are."""

    rows: int
    length: int
    uniform: bool = False
    """Whether all rows have that length."""
    count: int = 1


@dataclass(frozen=True)
class MemoryModels:
    """The memory model of padded batches, and that of batches of one length."""

    padded: MemoryModel
    uniform: MemoryModel

    def peak_bytes(self, rows: int, shape: BatchShape) -> int:
        """What so many rows of a batch take."""
        layout: Layout = "uniform" if shape.uniform else "padded"
        return (self.uniform if shape.uniform else self.padded).allocated_bytes(rows, shape.length, layout)


@dataclass(frozen=True)
class WeightBytes:
    """The weights of a model: all, and those of one of its repeated layers."""

    total: int
    layers: int = 0
    of_layers: int = 0

    @property
    def streamed(self) -> int:
        """What is on the card while layers are streamed: two of them, and what belongs to no layer."""
        if not self.layers:
            return self.total
        return self.total - self.of_layers + 2 * self.of_layers // self.layers


@dataclass(frozen=True)
class CardForecast:
    """The predicted peak of a card, and how the batches run there."""

    peak_bytes: int
    """Most memory that is allocated."""
    reserved_bytes: int
    """The same with what the allocator reserves beside it: what counts towards the ceiling, with `outside_bytes`."""
    batches: int
    in_parts: int = 0
    """Batches that are run in parts: there is no room for all their rows."""
    too_large: int = 0
    """Batches of which not even one row fits: the mitigation ladder runs these."""
    longest_that_fits: int | None = None
    """Tokens of the longest row that fits, if there are longer ones."""
    streamed: bool = False
    """Whether the weights have no room: they stay on the host."""

    @property
    def fits(self) -> bool:
        """Whether every batch can run as it is, or in parts."""
        return not self.streamed and not self.too_large


def forecast_card(
    weights: WeightBytes,
    shapes: Sequence[BatchShape],
    models: MemoryModels,
    card: CardRoom,
    *,
    beside_bytes: int = 0,
    lanes: int = 1,
) -> CardForecast:
    """The peak of a card that runs these batches; `beside_bytes` are weights of other models that stay there.

    `lanes` is the number of cards that each batch is split over.
    """
    streamed = weights.total > card.usable_bytes - beside_bytes
    held = beside_bytes + card.workspace_bytes + (weights.streamed if streamed else weights.total)
    allowed = _allowed_bytes(card, held, models.padded.reserve_ratio)
    peak, in_parts, too_large, fitting = 0, 0, 0, 0
    # tokens of the largest batch that fits; a padded one takes no less than one of one length
    whole = {False: 0, True: 0}
    for shape in sorted(shapes, key=lambda each: (-each.length, -each.rows)):
        rows = -(-shape.rows // lanes)
        if rows * shape.length <= max(whole[False], whole[shape.uniform]):
            continue  # fewer tokens in shorter rows than a batch that fits has: it takes no more
        if held + models.peak_bytes(1, shape) > card.usable_bytes:
            too_large += shape.count
            continue
        fitting = max(fitting, shape.length)
        parts = -(-rows // max(1, models.padded.most_rows(shape.length, allowed)))
        in_parts += shape.count * (parts > 1)
        if parts == 1:
            whole[shape.uniform] = max(whole[shape.uniform], rows * shape.length)
        if models.padded.allocated_bytes(-(-rows // parts), shape.length) > peak:
            peak = max(peak, min(models.peak_bytes(-(-rows // parts), shape), card.usable_bytes - held))
    allocated = min(held + peak, max(held, card.usable_bytes))
    reserved = min(int(allocated * EXPECTED_RESERVE_RATIO), max(allocated, card.usable_bytes))
    return CardForecast(
        peak_bytes=allocated,
        reserved_bytes=reserved,
        batches=sum(shape.count for shape in shapes),
        in_parts=in_parts,
        too_large=too_large,
        longest_that_fits=fitting if too_large else None,
        streamed=streamed,
    )


def _allowed_bytes(card: CardRoom, held_bytes: int, reserve_ratio: float) -> int:
    """What the controller allows the first batch: as in a run, when only the weights are there."""
    now = MemorySnapshot(
        device="",
        total_bytes=card.total_bytes,
        free_bytes=card.total_bytes - held_bytes,
        allocated_bytes=held_bytes,
        reserved_bytes=held_bytes,
        peak_bytes=held_bytes,
        peak_reserved_bytes=held_bytes,
        external_bytes=card.outside_bytes,
        ceiling_bytes=card.ceiling_bytes,
    )
    return decide(None, now, reserve_ratio).allowance.activation_bytes
