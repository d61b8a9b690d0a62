from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from tests.support.clock import HANG_S, Clock
from tests.support.leases import ReportingLeases
from ultimate_embedder.devices import Device
from ultimate_embedder.devices.accelerator import AcceleratorDevice
from ultimate_embedder.errors import LeaseError
from ultimate_embedder.events import Event, LeaseAcquired, LeaseReleased, ModelEvicted, ModelPlaced
from ultimate_embedder.locks import OrderedCondition
from ultimate_embedder.types import MemorySnapshot


class Card(AcceleratorDevice):
    """A card as the books see it: a size, and what is on it."""

    def __init__(self, name: str, size_bytes: int = 100) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.releases = 0

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(
            device=self.name,
            total_bytes=self.size_bytes,
            free_bytes=self.size_bytes - self.used_bytes,
            allocated_bytes=self.used_bytes,
            reserved_bytes=self.used_bytes,
            peak_bytes=self.used_bytes,
            peak_reserved_bytes=self.used_bytes,
            external_bytes=0,
            ceiling_bytes=self.size_bytes,
        )

    def hold_ceiling(self) -> MemorySnapshot:
        return self.snapshot()

    def release_workspaces(self) -> None:
        pass

    def release_cache(self) -> None:
        self.releases += 1


class Weights:
    """A model that takes bytes on cards until it is evicted."""

    def __init__(self, cards: Sequence[Card], weight_bytes: int = 40) -> None:
        self.devices: tuple[Device, ...] = tuple(cards)
        self.weight_bytes = weight_bytes
        self.placing_seconds = 1.5
        self.description = "one copy"
        self.workers = 1
        self.evictions = 0
        self._cards = cards
        for card in cards:
            card.used_bytes += weight_bytes

    def bytes_by_device(self) -> dict[str, int]:
        return {card.name: self.weight_bytes for card in self._cards}

    def evict(self) -> list[str]:
        self.evictions += 1
        for card in self._cards:
            card.used_bytes -= self.weight_bytes
        return []


@pytest.fixture
def leases(seen: list[Event]) -> ReportingLeases:
    return ReportingLeases(seen.append)


@pytest.fixture
def card() -> Card:
    return Card("card:0")


@pytest.fixture
def other_card() -> Card:
    return Card("card:1")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which leases wait."""
    clock = Clock()
    monkeypatch.setattr("ultimate_embedder.devices.leases.time", clock)
    return clock


def use_condition(condition: type[OrderedCondition], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let leases that are made from now on wait with this condition."""
    monkeypatch.setattr("ultimate_embedder.devices.leases.OrderedCondition", condition)


def start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def keep_warm(leases: ReportingLeases, owner: str, cards: Sequence[Card], weight_bytes: int = 40) -> Weights:
    with leases.lease(owner, cards, keep=True) as lease:
        return lease.occupy(Weights, lambda: Weights(cards, weight_bytes))


def test_another_owner_waits_until_the_lease_ends(
    card: Card, seen: list[Event], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()

    class Noticed(OrderedCondition):
        def wait(self, timeout_s: float | None = None) -> bool:
            waiting.set()
            return super().wait(timeout_s)

    use_condition(Noticed, monkeypatch)
    leases, happened = ReportingLeases(seen.append), []

    def second() -> None:
        with leases.lease("second", [card]):
            happened.append("second has it")

    with leases.lease("first", [card]):
        thread = start(second)
        assert waiting.wait(HANG_S)
        clock.advance(7)
        happened.append("first leaves")
    thread.join(HANG_S)
    assert happened == ["first leaves", "second has it"]
    waited = [event.waited_seconds for event in seen if isinstance(event, LeaseAcquired)]
    assert waited == pytest.approx([0, 7], abs=1e-6)


def test_of_many_owners_one_at_a_time_has_the_device(leases: ReportingLeases, card: Card) -> None:
    inside, most = [], []

    def work(owner: str) -> None:
        with leases.lease(owner, [card]):
            inside.append(owner)
            most.append(len(inside))
            threading.Event().wait(0.002)  # a chance for another owner to come in
            inside.remove(owner)

    threads = [start(lambda owner=f"owner {number}": work(owner)) for number in range(12)]  # type: ignore[misc]
    for thread in threads:
        thread.join(HANG_S)
    assert most == [1] * 12


def test_the_same_owner_is_no_exception(leases: ReportingLeases, card: Card) -> None:
    with (
        leases.lease("model", [card]),
        pytest.raises(LeaseError, match="model work there"),
        leases.lease("model", [card], wait_s=0),
    ):
        raise AssertionError("two leases at once")


def test_who_does_not_want_to_wait_is_refused_and_told_who_is_there(leases: ReportingLeases, card: Card) -> None:
    with (
        leases.lease("bge-m3", [card]),
        pytest.raises(LeaseError, match="minilm cannot have card:0: bge-m3 work there"),
        leases.lease("minilm", [card], wait_s=0),
    ):
        raise AssertionError("leased twice")


def test_waiting_ends_after_the_time_that_was_given(
    card: Card, seen: list[Event], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s = []

    class WokenHalfWay(OrderedCondition):
        def wait(self, timeout_s: float | None = None) -> bool:
            assert timeout_s is not None
            waits_s.append(timeout_s)
            clock.advance(timeout_s if len(waits_s) == 3 else timeout_s / 2)
            return True

    use_condition(WokenHalfWay, monkeypatch)
    leases = ReportingLeases(seen.append)
    with leases.lease("first", [card]), pytest.raises(LeaseError), leases.lease("second", [card], wait_s=8):
        raise AssertionError("leased twice")
    assert waits_s == [8, 4, 2]


def test_a_device_that_comes_free_in_time_is_given(leases: ReportingLeases, card: Card) -> None:
    taken = threading.Event()

    def first() -> None:
        with leases.lease("first", [card]):
            taken.set()
            threading.Event().wait(0.05)  # the other one comes and waits, most of the times

    start(first)
    assert taken.wait(HANG_S)
    with leases.lease("second", [card], wait_s=HANG_S) as lease:
        assert lease.owner == "second"


def test_owners_of_one_party_share_a_device_and_strangers_do_not(leases: ReportingLeases, card: Card) -> None:
    with (
        leases.lease("primary", [card], party="run"),
        leases.lease("companion", [card], party="run", wait_s=0),
        pytest.raises(LeaseError, match="primary and companion"),
        leases.lease("stranger", [card], wait_s=0),
    ):
        raise AssertionError("a stranger among them")
    with leases.lease("stranger", [card], wait_s=0):
        pass


def test_sets_that_overlap_exclude_each_other_and_disjoint_ones_do_not(
    leases: ReportingLeases, card: Card, other_card: Card
) -> None:
    with leases.lease("both", [card, other_card]):
        for each in (card, other_card):
            with pytest.raises(LeaseError), leases.lease("one", [each], wait_s=0):
                raise AssertionError("leased twice")
    with (
        leases.lease("left", [card], wait_s=0),
        leases.lease("right", [other_card], wait_s=0),
        pytest.raises(LeaseError, match="left and right"),
        leases.lease("both", [card, other_card], wait_s=0),
    ):
        raise AssertionError("leased twice")


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt, SystemExit])
def test_whatever_happens_the_device_comes_back_without_the_weights(
    leases: ReportingLeases, card: Card, seen: list[Event], error: type[BaseException]
) -> None:
    def place_and_fail() -> None:
        with leases.lease("model", [card], collection="docs") as lease:
            lease.occupy(Weights, lambda: Weights([card]))
            raise error

    with pytest.raises(error):
        place_and_fail()
    acquired, placed, released = seen
    assert isinstance(acquired, LeaseAcquired)
    assert isinstance(placed, ModelPlaced)
    assert isinstance(released, LeaseReleased)
    assert acquired.lease_id == placed.lease_id == released.lease_id != ""
    assert [each.allocated_bytes for each in placed.memory] == [40]
    assert (released.collection, released.model, released.devices) == ("docs", "model", ["card:0"])
    assert acquired.memory == released.memory
    assert (released.placement, released.leftovers) == ("one copy", [])
    assert card.releases == 1
    with leases.lease("next", [card], wait_s=0):
        assert card.used_bytes == 0


def test_bytes_that_were_not_there_before_are_reported(leases: ReportingLeases, card: Card, seen: list[Event]) -> None:
    card.used_bytes = 10
    with leases.lease("tidy", [card]) as lease:
        lease.occupy(Weights, lambda: Weights([card]))
    with leases.lease("untidy", [card]):
        card.used_bytes += 7
    leftovers = [event.leftovers for event in seen if isinstance(event, LeaseReleased)]
    assert leftovers == [[], ["7 bytes on card:0"]]


def test_what_the_others_of_a_party_hold_is_not_left_behind_by_us(
    leases: ReportingLeases, card: Card, seen: list[Event]
) -> None:
    with leases.lease("primary", [card], party="run") as primary, leases.lease("companion", [card], party="run"):
        primary.occupy(Weights, lambda: Weights([card]))
    assert [event.leftovers for event in seen if isinstance(event, LeaseReleased)] == [[], []]


def test_a_model_that_is_kept_is_there_for_its_next_lease(
    leases: ReportingLeases, card: Card, seen: list[Event]
) -> None:
    weights = keep_warm(leases, "model", [card])
    assert card.used_bytes == 40
    with leases.lease("model", [card], keep=True) as lease:
        assert lease.resident is weights
    first, _, released, second, _ = seen
    assert isinstance(first, LeaseAcquired)
    assert (first.saved_bytes, first.saved_seconds) == (0, 0.0)
    assert isinstance(released, LeaseReleased)
    assert (released.kept_bytes, released.leftovers) == (40, [])
    assert isinstance(second, LeaseAcquired)
    assert (second.saved_bytes, second.saved_seconds) == (40, 1.5)
    assert weights.evictions == 0


def test_a_kept_model_stays_where_there_is_room_for_the_next_owner(
    leases: ReportingLeases, card: Card, seen: list[Event]
) -> None:
    weights = keep_warm(leases, "primary", [card])
    with leases.lease("companion", [card], needed_bytes=60):
        assert card.used_bytes == 40
    assert weights.evictions == 0
    assert not any(isinstance(event, ModelEvicted) for event in seen)


def test_a_kept_model_goes_where_the_next_owner_needs_the_room(
    leases: ReportingLeases, card: Card, seen: list[Event]
) -> None:
    keep_warm(leases, "primary", [card])
    with leases.lease("companion", [card], needed_bytes=61):
        assert card.used_bytes == 0
    evicted = next(event for event in seen if isinstance(event, ModelEvicted))
    assert (evicted.model, evicted.devices, evicted.why) == ("primary", ["card:0"], "companion needs the room")
    acquired = [event for event in seen if isinstance(event, LeaseAcquired)]
    assert acquired[-1].evicted == ["primary"]
    with leases.lease("primary", [card]) as lease:
        assert lease.resident is None


def test_no_more_kept_models_go_than_must(leases: ReportingLeases, card: Card) -> None:
    keep_warm(leases, "one", [card], 30)
    keep_warm(leases, "two", [card], 30)
    with leases.lease("three", [card], needed_bytes=70):
        assert card.used_bytes == 30


def test_room_is_made_only_on_the_devices_that_are_wanted(
    leases: ReportingLeases, card: Card, other_card: Card
) -> None:
    here, there = keep_warm(leases, "here", [card]), keep_warm(leases, "there", [other_card])
    with leases.lease("large", [card], needed_bytes=100):
        pass
    assert (here.evictions, there.evictions) == (1, 0)


def test_ones_own_kept_weights_count_as_room(leases: ReportingLeases, card: Card) -> None:
    weights = keep_warm(leases, "model", [card])
    neighbour = keep_warm(leases, "neighbour", [card], 30)
    with leases.lease("model", [card], needed_bytes=70, keep=True) as lease:
        assert lease.resident is weights
    assert neighbour.evictions == 0


def test_a_kept_model_that_is_wanted_elsewhere_moves(
    leases: ReportingLeases, card: Card, other_card: Card, seen: list[Event]
) -> None:
    keep_warm(leases, "model", [card])
    with leases.lease("model", [card, other_card]) as lease:
        assert lease.resident is None
        assert card.used_bytes == 0
    assert [event.why for event in seen if isinstance(event, ModelEvicted)] == ["it is wanted on other devices"]


def test_at_the_end_everything_that_was_kept_goes(
    leases: ReportingLeases, card: Card, other_card: Card, seen: list[Event]
) -> None:
    keep_warm(leases, "one", [card])
    keep_warm(leases, "two", [card, other_card])
    leases.close()
    assert (card.used_bytes, other_card.used_bytes) == (0, 0)
    evicted = [event for event in seen if isinstance(event, ModelEvicted)]
    assert [(event.model, event.why) for event in evicted] == [("one", "the run is over"), ("two", "the run is over")]
    leases.close()
    assert len([event for event in seen if isinstance(event, ModelEvicted)]) == 2
