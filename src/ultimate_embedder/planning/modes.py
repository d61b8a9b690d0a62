"""A mode is data: whether the models of a collection work together or in turn, and how long each keeps the devices.

Which device a companion gets, and what `auto` means, are pure functions of what models need and what devices have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mode:
    """How the passes over a collection share the devices."""

    together: bool
    """All models at the same time, each on a device of its own; else one after the other, each on all devices."""
    lease: Literal["collection", "turn"]
    """How long a model keeps its devices."""


MODES: dict[str, Mode] = {
    "single": Mode(together=False, lease="collection"),
    "simultaneous": Mode(together=True, lease="collection"),
    "sequential": Mode(together=False, lease="turn"),
    "exclusive": Mode(together=False, lease="collection"),
}


@dataclass(frozen=True)
class MemoryNeed:
    """What a model takes on a device: weights, and activations of the smallest and of a comfortable batch."""

    model: str
    weight_bytes: int
    smallest_bytes: int
    comfortable_bytes: int


@dataclass(frozen=True)
class DeviceRoom:
    """A device as planning sees it."""

    name: str
    has_ceiling: bool
    """Whether its memory is limited, as a card's is; the CPU's is not."""
    room_bytes: int = 0
    """What models may allocate there; 0 where there is no ceiling."""


@dataclass(frozen=True)
class Assignment:
    """The card that a model gets, by number, and why that one; None stands for the CPU."""

    card: int | None
    why: str


def assign_devices(
    needs: Sequence[MemoryNeed], cards: Sequence[DeviceRoom], *, share: bool = False, comfortably: bool = False
) -> list[Assignment]:
    """A device for each model that is to stay there: the first card for the primary, for each companion the next one
    with room for its weights and a batch, else the CPU. The primary's card stays the primary's, unless models may
    `share` it; even then they do so only where all have room for comfortable batches.

    One forward is run at a time on a card, so that models on it need room for all their weights and for the largest of
    their batches. `comfortably` asks for room for comfortable batches everywhere.
    """
    tenants: list[list[MemoryNeed]] = [[] for _ in cards]
    tenants[0].append(needs[0])
    found = [Assignment(0, "the primary has the first GPU")]
    for need in needs[1:]:
        others = sorted(range(1, len(cards)), key=lambda card: len(tenants[card]))
        fitting = (
            card
            for card in [*others, *([0] if share else [])]
            if _bytes([*tenants[card], need], comfortably or card == 0) <= cards[card].room_bytes
        )
        card = next(fitting, None)
        found.append(Assignment(card, _why(need, card, cards, tenants, share=share)))
        if card is not None:
            tenants[card].append(need)
    return found


def _why(
    need: MemoryNeed,
    card: int | None,
    cards: Sequence[DeviceRoom],
    tenants: Sequence[Sequence[MemoryNeed]],
    *,
    share: bool,
) -> str:
    if card is not None and card > 0:
        return f"{cards[card].name} has room for it"
    if len(cards) == 1:
        nowhere = "there is no second GPU"
    else:
        rooms = ", ".join(f"{each.name} has {_megabytes(each.room_bytes)}" for each in cards[1:])
        least = min(_bytes([*tenants[each], need], comfortable=False) for each in range(1, len(cards)))
        nowhere = f"no other GPU has {_megabytes(least)} for it ({rooms})"
    if card == 0:
        return f"{nowhere}; it shares {cards[0].name} with the primary, as --companions share allows"
    return nowhere if not share else f"{nowhere}, and {cards[0].name} has no room beside the primary"


def settle_mode(
    asked: str,
    passes: int,
    waiting: Sequence[str],
    cards: Sequence[DeviceRoom],
    needs: Callable[[], Sequence[MemoryNeed]],
    *,
    share: bool = False,
) -> tuple[str, str]:
    """The mode of a collection, and why; `waiting` are the models that have texts to encode, `needs` what they take."""
    if passes == 1:
        return "single", "there is one model"
    if asked != "auto":
        return asked, "asked for"
    if not waiting:
        return "exclusive", "all vectors are stored: nothing is to be encoded"
    if len(waiting) == 1:
        return "exclusive", f"only {waiting[0]} has texts to encode"
    return choose_mode(needs() if cards else [], cards, share=share)


def choose_mode(needs: Sequence[MemoryNeed], cards: Sequence[DeviceRoom], *, share: bool = False) -> tuple[str, str]:
    """What `auto` means: all models at once where each has room for comfortable batches, else one after the other."""
    if not cards:
        return "exclusive", "on a CPU models at the same time would only share its cores"
    if _bytes(needs[:1], comfortable=True) > cards[0].room_bytes:
        return "exclusive", f"{needs[0].model} needs the first GPU to itself, and more"
    assigned = assign_devices(needs, cards, share=share, comfortably=True)
    for need, assignment in zip(needs, assigned, strict=True):
        if assignment.card is None:
            hint = "" if share else "; the primary's GPU is not shared (--companions share allows it)"
            wanted = _megabytes(_bytes([need], comfortable=True))
            return "exclusive", f"no GPU has {wanted} for {need.model} beside the models before it{hint}"
    shared = ", companions share the primary's" if any(each.card == 0 for each in assigned[1:]) else ""
    return "simultaneous", f"all models fit on the GPUs with room for comfortable batches{shared}"


def _bytes(needs: Sequence[MemoryNeed], comfortable: bool) -> int:
    activations = [need.comfortable_bytes if comfortable else need.smallest_bytes for need in needs]
    return sum(need.weight_bytes for need in needs) + max(activations)


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"
