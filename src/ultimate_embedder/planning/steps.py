"""The steps of a run: which passes work on which rows, on which devices, together or in turn, and how long a turn is.

A stage is a set of passes that begin and end together. Its steps are handed to an executor one after the other; what a
step took decides how long the next turn is. Everything here is a frozen value that can be pickled, or a pure function.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ultimate_embedder.planning.modes import Assignment, DeviceRoom, MemoryNeed, Mode, assign_devices

if TYPE_CHECKING:
    from ultimate_embedder.planning.passes import PassPlan

WINDOW_ROWS = 4096  # windows, turns and the waits of passes for each other end at multiples of this row


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a collection's chunk table."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def split(self, size: int) -> Iterator[Rows]:
        """The same rows in pieces of at most `size`."""
        for start in range(self.start, self.stop, size):
            yield Rows(start, min(start + size, self.stop))


@dataclass(frozen=True)
class Place:
    """The devices that a pass gets, by name, and those that it may move to when it has to make room."""

    plan: PassPlan
    devices: tuple[str, ...]
    refuges: tuple[str, ...] = ()
    cpu_workers: int | None = None
    """How many cores it gets on the CPU; None for all."""
    why: str = ""
    """Why a companion is there."""


@dataclass(frozen=True)
class Task:
    """One pass over some rows on some devices."""

    rows: Rows
    place: Place

    @property
    def plan(self) -> PassPlan:
        """The pass."""
        return self.place.plan


@dataclass(frozen=True)
class Step:
    """Tasks that run at the same time, on the same rows; what an executor is handed."""

    tasks: tuple[Task, ...]
    lockstep_texts: int | None = None
    """Tasks wait for each other after so many texts; None: they do not."""


@dataclass(frozen=True)
class TaskResult:
    """What was done of a pass: rows encoded and the largest batch, by device."""

    rows_on: Mapping[str, int] = field(default_factory=dict)
    largest_batch: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """All rows that were encoded."""
        return sum(self.rows_on.values())

    def __add__(self, other: TaskResult) -> TaskResult:
        devices = dict.fromkeys([*self.rows_on, *other.rows_on])
        rows = {name: self.rows_on.get(name, 0) + other.rows_on.get(name, 0) for name in devices}
        largest = {name: max(self.largest_batch.get(name, 0), other.largest_batch.get(name, 0)) for name in devices}
        return TaskResult(rows, largest)


@dataclass(frozen=True)
class StepResult:
    """What a step took, and how long each of its passes had its devices, by number."""

    texts: int = 0
    moving_seconds: float = 0.0
    """Spent on bringing weights to devices and taking them away."""
    working_seconds: float = 0.0
    seconds: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """How long a model works before the next one has its turn: long enough for moving weights to be a small part."""

    first_texts: int = WINDOW_ROWS
    most_texts: int = 1 << 18
    moving_share: float = 0.05
    multiple_of: int = WINDOW_ROWS

    def next_texts(self, results: Sequence[StepResult]) -> int:
        """Texts of the next turn, by what the last one took."""
        wanted = [min(self.most_texts, self._texts_for(each)) for each in results if each.texts]
        texts = max([self.first_texts, *wanted])
        return -(-texts // self.multiple_of) * self.multiple_of

    def _texts_for(self, result: StepResult) -> int:
        working = result.moving_seconds * (1 - self.moving_share) / self.moving_share
        return int(result.texts * working / max(result.working_seconds, 1e-9))


TURN = Turn()


@dataclass(frozen=True)
class Stage:
    """Passes that begin and end together."""

    places: tuple[Place, ...]
    together: bool = False
    """Whether they work at the same time; else one after the other."""
    turn: Turn | None = None
    """How long each works before the next; None: to its end."""

    def steps(self, rows: Rows) -> list[Step]:
        """The steps over some rows."""
        tasks = [Task(rows, place) for place in self.places]
        if self.together:
            return [Step(tuple(tasks), WINDOW_ROWS)]
        return [Step((task,)) for task in tasks]


def plan_stages(
    mode: Mode,
    passes: Sequence[PassPlan],
    devices: Sequence[DeviceRoom],
    *,
    waiting: Collection[int],
    needs: Mapping[int, MemoryNeed],
    cores: int,
    share: bool = False,
) -> tuple[Stage, ...]:
    """The stages of a collection. `waiting` are the numbers of the passes that have texts to encode.

    `needs` has the memory that these take, where models are to share devices that have a ceiling. `share` lets
    companions onto the primary's.
    """
    if mode.together:
        busy = [plan for plan in passes if plan.number in waiting]
        return (Stage(_places_together(passes, busy, devices, needs, cores, share), together=True),)
    names = tuple(device.name for device in devices)
    places = tuple(Place(plan, names) for plan in passes)
    if mode.lease == "turn":
        return (Stage(places, turn=TURN),)
    return tuple(Stage((place,)) for place in places)


def _places_together(
    passes: Sequence[PassPlan],
    busy: Sequence[PassPlan],
    devices: Sequence[DeviceRoom],
    needs: Mapping[int, MemoryNeed],
    cores: int,
    share: bool,
) -> tuple[Place, ...]:
    """A device for each pass, all at the same time; passes that have nothing to do take none."""
    cards = [device for device in devices if device.has_ceiling]
    if not cards or not busy:
        workers = max(1, cores // max(1, len(busy)))
        return tuple(Place(plan, ("cpu",), cpu_workers=workers) for plan in passes)
    assigned = assign_devices([needs[plan.number] for plan in busy], cards, share=share)
    assignment_of = {plan.number: assignment for plan, assignment in zip(busy, assigned, strict=True)}
    return tuple(
        _place(plan, assignment_of[plan.number], cards, is_primary=plan is busy[0])
        if plan.number in assignment_of
        else Place(plan, (devices[0].name,))
        for plan in passes
    )


def _place(plan: PassPlan, assignment: Assignment, cards: Sequence[DeviceRoom], *, is_primary: bool) -> Place:
    if is_primary:
        return Place(plan, (cards[0].name,))
    card = assignment.card
    refuges = tuple(each.name for number, each in enumerate(cards) if number not in (0, card))
    return Place(plan, ("cpu",) if card is None else (cards[card].name,), refuges, why=assignment.why)
