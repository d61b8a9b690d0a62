"""What each card will hold: the stages of a collection, and the forecast of every pass on every card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ultimate_embedder.batching import EXPECTED_RESERVE_RATIO, MemoryModel
from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import DescribedDevice
from ultimate_embedder.execution import GUESSED_BYTES_PER_TOKEN, memory_need
from ultimate_embedder.machine import usable_cores
from ultimate_embedder.models import Encoder
from ultimate_embedder.planned import PlannedMode
from ultimate_embedder.planning import (
    MODES,
    BatchShape,
    CardForecast,
    CardRoom,
    DeviceRoom,
    MemoryModels,
    MemoryNeed,
    PassPlan,
    Place,
    Stage,
    WeightBytes,
    assign_devices,
    forecast_card,
    plan_stages,
)
from ultimate_embedder.types import Capability

HOPPER = (9, 0)


@dataclass(frozen=True)
class PassMemory:
    """What the memory of a pass depends on."""

    plan: PassPlan
    shapes: tuple[BatchShape, ...]
    encoder: Encoder

    @property
    def weights(self) -> WeightBytes:
        """Of the model."""
        element = self.encoder.weight_bytes / max(1, sum(each.numel() for each in self.encoder.model.parameters()))
        return WeightBytes(self.encoder.weight_bytes, self.encoder.layers, int(self.encoder.layer_weights * element))

    def models(self, capability: Capability | None) -> MemoryModels:
        """Its memory models on a card of that capability."""
        return MemoryModels(
            MemoryModel(partial(_predict, self.encoder, capability, None)),
            MemoryModel(partial(_predict, self.encoder, capability, False)),
        )

    @property
    def has_work(self) -> bool:
        """Whether anything is to be encoded."""
        return bool(self.shapes)


def _predict(encoder: Encoder, capability: Capability | None, has_padding: bool | None, rows: int, length: int) -> int:
    if not encoder.tokenizes:
        return rows * length * GUESSED_BYTES_PER_TOKEN
    return encoder.peak_bytes(rows, length, capability, has_padding=has_padding)


@dataclass(frozen=True)
class Placed:
    """A pass on the devices that it works on, with a forecast for each that is a card."""

    plan: PassPlan
    devices: tuple[DescribedDevice, ...]
    cards: Mapping[str, CardForecast]

    @property
    def fits(self) -> bool:
        """Whether every batch can run on these devices."""
        return all(forecast.fits for forecast in self.cards.values())


def rooms_of(devices: Sequence[DescribedDevice]) -> list[DeviceRoom]:
    """The devices as modes see them: what models may allocate, less what the allocator takes beside it."""
    return [
        DeviceRoom(
            each.name, each.has_ceiling, int(each.usable_bytes / EXPECTED_RESERVE_RATIO) if each.has_ceiling else 0
        )
        for each in devices
    ]


def needs_of(passes: Sequence[PassMemory], devices: Sequence[DescribedDevice]) -> list[MemoryNeed]:
    """What each model takes; on the oldest card, which takes most."""
    capability = min((each.capability for each in devices if each.capability is not None), default=None)
    return [memory_need(each.encoder, capability) for each in passes]


def stages_of(
    mode: str, passes: Sequence[PassMemory], devices: Sequence[DescribedDevice], config: RunConfig
) -> tuple[Stage, ...]:
    """The stages of a collection in a mode."""
    busy = [each for each in passes if each.has_work]
    together = MODES[mode].together and any(each.has_ceiling for each in devices)
    needs = dict(zip([each.plan.number for each in busy], needs_of(busy, devices), strict=True)) if together else {}
    return plan_stages(
        MODES[mode],
        [each.plan for each in passes],
        rooms_of(devices),
        waiting=[each.plan.number for each in busy],
        needs=needs,
        cores=usable_cores(),
        share=config.companions == "share",
    )


def place_passes(
    stages: Sequence[Stage],
    passes: Sequence[PassMemory],
    devices: Sequence[DescribedDevice],
    cpu: Callable[[int | None], DescribedDevice],
    config: RunConfig,
) -> Iterator[Placed]:
    """Each pass with work, on its devices; `cpu` gives the CPU with so many workers."""
    by_name = {device.name: device for device in devices}
    by_number = {each.plan.number: each for each in passes}
    for stage in stages:
        for place in stage.places:
            memory = by_number[place.plan.number]
            if not memory.has_work:
                continue
            beside = _beside(stage, place, by_number, config)
            mine = [by_name.get(name) or cpu(place.cpu_workers) for name in place.devices]
            mine = [device if device.has_ceiling else cpu(place.cpu_workers) for device in mine]
            yield _place(memory, mine, beside, config)


def _beside(stage: Stage, place: Place, passes: Mapping[int, PassMemory], config: RunConfig) -> Mapping[str, int]:
    """Weights of other models that stay on the devices of a pass: those of the same stage, and those kept warm."""
    found: dict[str, int] = {}
    for other in passes.values():
        if other.plan.number == place.plan.number or not other.has_work:
            continue
        there = next((each for each in stage.places if each.plan.number == other.plan.number), None)
        kept = config.warm_cache or (config.keep_primary and other.plan.number == 0)
        if stage.together and there is not None:
            names = set(there.devices) & set(place.devices)
        else:
            names = set(place.devices) if kept else set()
        for name in names:
            found[name] = found.get(name, 0) + other.encoder.weight_bytes
    return found


def _place(
    memory: PassMemory, devices: Sequence[DescribedDevice], beside: Mapping[str, int], config: RunConfig
) -> Placed:
    """The devices that have room for the weights; where none has, the first, to which they are streamed."""
    cards = [device for device in devices if device.has_ceiling]
    if not cards:
        return Placed(memory.plan, tuple(devices), {})
    size = memory.encoder.weight_bytes
    room = [card for card in cards if size <= card.usable_bytes - _kept(card, beside, size)]
    if config.parallelism == "none":
        room = room[:1]
    used = room or cards[:1]
    lanes = len(used) if config.parallelism == "data-parallel" else 1
    forecasts = {
        card.name: forecast_card(
            memory.weights,
            memory.shapes,
            memory.models(card.capability),
            card_room(card),
            beside_bytes=_kept(card, beside, size),
            lanes=lanes,
        )
        for card in used
    }
    return Placed(memory.plan, tuple(used), forecasts)


def _kept(card: DescribedDevice, beside: Mapping[str, int], needed_bytes: int) -> int:
    """What stays there of other models: nothing, where there is no room for it beside the model that works."""
    kept = beside.get(card.name, 0)
    return kept if kept + needed_bytes <= card.usable_bytes else 0


def card_room(device: DescribedDevice) -> CardRoom:
    """A card as the forecast sees it."""
    return CardRoom(
        device.total_bytes,
        device.ceiling_bytes,
        device.outside_bytes,
        is_hopper=device.capability is not None and device.capability >= HOPPER,
    )


def compare_modes(
    passes: Sequence[PassMemory], devices: Sequence[DescribedDevice], config: RunConfig
) -> Iterator[PlannedMode]:
    """Which modes fit, and why."""
    busy = [each for each in passes if each.has_work]
    cards = [device for device in devices if device.has_ceiling]
    if not cards:
        yield PlannedMode(mode="exclusive", fits=True, why="one model after the other on all cores")
        yield PlannedMode(mode="sequential", fits=True, why="models take turns on all cores")
        yield PlannedMode(mode="simultaneous", fits=True, why="models share the cores: no faster")
        return
    alone = [_place(each, cards, {}, config) for each in busy]
    fits, why = _alone_in_words(alone, cards)
    yield PlannedMode(mode="exclusive", fits=fits, why=f"{why}, one after the other")
    yield PlannedMode(mode="sequential", fits=fits, why=f"{why}, in turns")
    assigned = assign_devices(needs_of(busy, cards), rooms_of(cards), share=config.companions == "share")
    spilled = [(each, one) for each, one in zip(busy, assigned, strict=True) if one.card is None]
    if spilled:
        why = "; ".join(f"{each.plan.name} on the CPU: {one.why}" for each, one in spilled)
    else:
        why = "; ".join(
            f"{each.plan.name} on {cards[one.card or 0].name}" for each, one in zip(busy, assigned, strict=True)
        )
    yield PlannedMode(mode="simultaneous", fits=not spilled, why=why)


def _alone_in_words(alone: Sequence[Placed], cards: Sequence[DescribedDevice]) -> tuple[bool, str]:
    misfits = [each.plan.name for each in alone if not each.fits]
    if misfits:
        return False, f"{' and '.join(misfits)} alone: no room on {cards[0].name} for weights and the longest texts"
    return True, f"each model alone on {' and '.join(card.name for card in cards)}"
