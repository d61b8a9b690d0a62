"""Devices as a plan sees them: of this machine, or of another that only their names and sizes describe."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ultimate_embedder.config import parse_size, suggest
from ultimate_embedder.devices.base import Device
from ultimate_embedder.devices.cards import CARDS, Card, card_of_hardware, find_card
from ultimate_embedder.devices.cpu import CPU_BUDGET_TOKENS, MOST_WORKERS
from ultimate_embedder.devices.formats import card_format, cpu_format
from ultimate_embedder.devices.limits import MemoryLimits
from ultimate_embedder.devices.nvidia import NVIDIA
from ultimate_embedder.errors import UsageError
from ultimate_embedder.machine import processor_name, usable_cores
from ultimate_embedder.types import Capability

MOST_CARDS = 64
CONTEXT_BYTES = 500_000_000  # assumed: what the driver of a card takes for each process (docs/real-cards.md)
SMALLEST_CARD_BYTES = 2 << 30  # what is smaller is simulated, and has no driver
UNKNOWN_CAPABILITY = (7, 5)  # of a card that only its size describes: that of a T4, and of simulated ones
GPU_WORDS = "t4x2, l4, a100-40, 2x15GiB or cpu"


@dataclass(frozen=True)
class DescribedDevice:
    """A device without the device: what batches, memory and time depend on."""

    name: str
    hardware: str
    """What it is, as its maker calls it."""
    has_ceiling: bool
    total_bytes: int
    ceiling_bytes: int
    outside_bytes: int = 0
    """What others hold of it: the driver, other processes."""
    capability: Capability | None = None
    card: Card | None = None
    """Its data sheet, if it is a known card."""
    workers: int = 1
    """How many batches it computes at the same time: the cores of a CPU, each on its own."""
    lanes: int = 1
    here: bool = True
    """Whether it is one of this machine."""
    has_vnni: bool = False
    """Whether it is a CPU that has instructions for int8 products."""

    @property
    def fixed_budget_tokens(self) -> int | None:
        """Padded tokens of a batch where speed decides."""
        return None if self.has_ceiling else CPU_BUDGET_TOKENS

    @property
    def usable_bytes(self) -> int:
        """What models may take."""
        return max(0, self.ceiling_bytes - self.outside_bytes)

    def dtype(self, precision: str) -> str:
        """The number format that `precision` means here."""
        return cpu_format(precision) if self.capability is None else card_format(precision, self.capability)


def describe_device(device: Device) -> DescribedDevice:
    """A device of this machine as it is now."""
    now = device.snapshot()
    card = card_of_hardware(device.hardware, now.total_bytes) if device.has_ceiling else None
    return DescribedDevice(
        name=device.name,
        hardware=device.hardware,
        has_ceiling=device.has_ceiling,
        total_bytes=now.total_bytes,
        ceiling_bytes=now.ceiling_bytes,
        outside_bytes=now.outside_bytes if device.has_ceiling else 0,
        capability=device.capability,
        card=card,
        workers=device.workers,
        has_vnni=device.has_vnni,
    )


def describe_gpus(word: str, limits: MemoryLimits, option: str = "--gpus") -> tuple[DescribedDevice, ...]:
    """The cards that a word describes: `t4x2`, `2xt4`, `l4`, `2x15GiB`, several joined by `+`, or `cpu`."""
    if word.strip().lower() == "cpu":
        return (describe_cpu(),)
    cards: list[tuple[Card | None, int]] = []
    for part in word.split("+"):
        count, card, memory_bytes = _parse(part.strip(), option)
        cards += [(card, memory_bytes)] * count
    if len(cards) > MOST_CARDS:
        raise UsageError(f"{option} {word}: that are {len(cards)} cards; give at most {MOST_CARDS}.")
    return tuple(_describe(number, card, size, limits) for number, (card, size) in enumerate(cards))


def describe_cpu(workers: int | None = None) -> DescribedDevice:
    """The CPU of this machine; its memory is the host's."""
    import psutil

    memory = psutil.virtual_memory()
    return DescribedDevice(
        name="cpu",
        hardware=processor_name(),
        has_ceiling=False,
        total_bytes=memory.total,
        ceiling_bytes=memory.total,
        workers=workers or min(usable_cores(), MOST_WORKERS),
    )


def _describe(number: int, card: Card | None, memory_bytes: int, limits: MemoryLimits) -> DescribedDevice:
    return DescribedDevice(
        name=f"{NVIDIA}:{number}",
        hardware=card.name if card else f"card of {memory_bytes / 2**30:.3g} GiB",
        has_ceiling=True,
        total_bytes=memory_bytes,
        ceiling_bytes=limits.ceiling_bytes(number, memory_bytes),
        outside_bytes=CONTEXT_BYTES if card or memory_bytes >= SMALLEST_CARD_BYTES else 0,
        capability=card.capability if card else UNKNOWN_CAPABILITY,
        card=card,
        here=False,
    )


def _parse(word: str, option: str) -> tuple[int, Card | None, int]:
    """How many cards, which, and how large; `rtx3090` is a card, not 3,090 of something."""
    before = re.fullmatch(r"(\d+)\s*x\s*(.+)", word, re.IGNORECASE)
    after = re.fullmatch(r"(.+?)\s*x\s*(\d+)", word, re.IGNORECASE)
    count, name = "1", word
    if find_card(word) is None and after and (not before or find_card(after[1])):
        count, name = after[2], after[1]
    elif find_card(word) is None and before:
        count, name = before[1], before[2]
    card = find_card(name)
    memory_bytes = card.memory_bytes if card else _size(name, word, option)
    if not 1 <= int(count[:9]) <= MOST_CARDS:
        raise UsageError(f"{option} {word}: give 1 to {MOST_CARDS} cards, such as {name}x2, or cpu.")
    return int(count), card, memory_bytes


def _size(name: str, word: str, option: str) -> int:
    if re.match(r"\d+(\.\d+)?\s*[kmg]i?b$", name, re.IGNORECASE) and (size := parse_size(name, option)):
        return size
    keys = [card.key for card in CARDS]
    known = [*keys, *(alias for card in CARDS for alias in card.aliases)]
    hint = " It stands alone." if name == "cpu" else suggest(name, known) or suggest(word, known)
    raise UsageError(
        f"{option} {word}: {name!r} is neither a known card nor a size.{hint} Write {GPU_WORDS}. The known cards: "
        f"{', '.join(keys)}."
    )
