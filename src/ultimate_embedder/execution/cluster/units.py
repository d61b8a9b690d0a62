"""Units: texts that travel to a node together, and the vectors that come back. Plain values that can be sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ultimate_embedder.events import Event
from ultimate_embedder.execution.executor import TextSource
from ultimate_embedder.models import ModelFile
from ultimate_embedder.planning import UNIT_TEXTS, PassPlan, Rows
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors import fingerprint

UNIT_CHARACTERS = 4 << 20  # long texts close a unit early: it must be done within its deadline


@dataclass(frozen=True, eq=False)
class Unit:
    """Texts of one pass. Equal texts of equal passes make a unit with the same id, in every run."""

    id: str
    model_pass: int
    keys: np.ndarray
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def halves(self, identity: PassIdentity) -> tuple[Unit, Unit]:
        """The same texts as two units."""
        middle = len(self) // 2
        first, second = (
            _make(identity, self.model_pass, self.keys[part], self.texts[part])
            for part in (slice(0, middle), slice(middle, None))
        )
        return first, second

    def without(self, done: np.ndarray, identity: PassIdentity) -> Unit | None:
        """The texts whose keys are not among these; None if that is no text."""
        known = set(map(bytes, np.ascontiguousarray(done)))
        left = [row for row, key in enumerate(np.ascontiguousarray(self.keys)) if bytes(key) not in known]
        if not left:
            return None
        return _make(identity, self.model_pass, self.keys[left], tuple(self.texts[row] for row in left))


@dataclass(frozen=True)
class OverlongRows:
    """Texts of a unit beyond the token limit: their keys, all their tokens, and those beyond it."""

    keys: np.ndarray
    tokens: np.ndarray
    over: np.ndarray


@dataclass(frozen=True)
class UnitResult:
    """What a node made of a unit. Texts without a usable vector are not among the keys, as in a store."""

    id: str
    keys: np.ndarray
    vectors: Any
    """An array, or `SparseVectors`; None where a node has written them into the shared output."""
    overlong: np.ndarray
    """Of each key: whether its text is beyond the token limit."""
    longest: tuple[OverlongRows, ...]
    texts: int
    """Of the unit that are dealt with: all, unless the node had to stop."""
    seconds: float
    events: tuple[Event, ...] = ()
    too_narrow: tuple[int, int] | None = None
    """Where the node has found that fp16 is too narrow for the model: of how many texts how many are unusable."""
    shard: ShardFile | None = None

    def with_events(self, events: tuple[Event, ...]) -> UnitResult:
        """The same with what has happened on the node."""
        return replace(self, events=events)


@dataclass(frozen=True)
class ShardFile:
    """Vectors that a node has written into the shared output: name within the store of the pass, and checksum."""

    name: str
    rows: int
    sha256: str


class Shipper(Protocol):
    """Gives the files of one model, piece by piece."""

    def files(self) -> Sequence[ModelFile]:
        """All files, with their checksums."""
        ...

    def piece(self, name: str, offset: int) -> bytes:
        """Some bytes of a file, as many as are sent at a time."""
        ...


@dataclass(frozen=True)
class PassOrder:
    """What a node is told of a pass before its units."""

    plan: PassPlan
    """With the driver's path of the model: a node finds its own."""
    source: str
    """The model as the user named it: a name, a hub id or a folder."""
    collection: str
    texts: int
    """Of the whole pass, and how many of them have a vector: whether fp16 is too narrow is a matter of shares."""
    stored: int
    on_cpu: bool = False
    """Whether the cards of a node are left alone."""
    store: str | None = None
    """The folder of the pass's vectors, where nodes write them themselves."""
    shipper: Shipper | None = None
    """Where a node gets the model from that has it not."""


def cut_units(texts: TextSource, rows: Rows, plan: PassPlan, size: int = UNIT_TEXTS) -> Iterator[Unit]:
    """The wanted texts among some rows, in their order, as units."""
    keys: list[np.ndarray] = []
    waiting: list[str] = []
    characters = 0
    for window in texts.read(rows):
        for key, text in zip(*(window or ((), ())), strict=True):
            keys.append(key)
            waiting.append(text)
            characters += len(text)
            if len(waiting) == size or characters >= UNIT_CHARACTERS:
                yield _make(plan.identity, plan.number, np.array(keys), tuple(waiting))
                keys, waiting, characters = [], [], 0
    if waiting:
        yield _make(plan.identity, plan.number, np.array(keys), tuple(waiting))


def _make(identity: PassIdentity, number: int, keys: np.ndarray, texts: tuple[str, ...]) -> Unit:
    digest = hashlib.sha256(fingerprint(identity).encode() + np.ascontiguousarray(keys).tobytes())
    return Unit(digest.hexdigest()[:16], number, keys, texts)
