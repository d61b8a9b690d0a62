"""The simulated accelerator does everything as late as the rules allow, and notices what is not in order."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ultimate_embedder.devices.simulated import SimulatedControls, simulate

MiB = 1 << 20
MISSING_WAIT = "wait_stream or wait_event is missing"
MISSING_RECORD = "record_stream is missing"
MISSING_SYNCHRONIZE = "synchronize is missing"


class Card:
    """One simulated device with a side stream."""

    def __init__(self) -> None:
        self.controls: SimulatedControls = simulate([1 << 30, 1 << 30])
        self.module = torch.get_device_module("simulated")
        self.computing = self.module.current_stream("simulated:0")
        self.side = self.module.Stream(device="simulated:0")

    def send(self, host: torch.Tensor) -> torch.Tensor:
        with self.side:
            return host.to("simulated:0", non_blocking=True)

    def ones(self) -> torch.Tensor:
        return torch.ones(8, device="simulated:0")

    def fetch(self, tensor: torch.Tensor, into: torch.Tensor) -> None:
        """Copy to the host on the side stream, after what the device computes."""
        self.side.wait_stream(self.computing)
        with self.side:
            into.copy_(tensor, non_blocking=True)

    @contextlib.contextmanager
    def race(self, problem: str) -> Iterator[None]:
        """Expect one race, raised as an error and counted."""
        with pytest.raises(RuntimeError, match=problem):
            yield
        (counted,) = self.controls.take_races()
        assert problem in counted

    def host_races(self) -> list[str]:
        return [race for race in self.controls.take_races() if MISSING_SYNCHRONIZE in race]


@pytest.fixture
def card() -> Card:
    return Card()


def pinned(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).pin_memory()


def test_a_kernel_that_does_not_wait_for_a_copy_to_the_device_is_a_race(card: Card) -> None:
    sent = card.send(pinned(1, 2, 3))
    with card.race(MISSING_WAIT):
        sent + 1
    card.computing.wait_stream(card.side)
    assert (sent + 1).tolist() == [2, 3, 4]


def test_a_copy_to_the_device_reads_the_host_when_somebody_waits_for_it(card: Card) -> None:
    host = pinned(1, 2)
    sent = card.send(host)
    host.fill_(7)
    assert card.host_races() != []  # the host must not write there before
    card.side.synchronize()
    assert sent.tolist() == [7, 7]


def test_the_destination_of_a_copy_on_the_device_holds_poison_until_then(card: Card) -> None:
    sent = card.send(pinned(1, 2))
    seen = (ctypes.c_float * 2).from_address(sent.data_ptr())
    assert np.isnan(list(seen)).all()
    card.side.synchronize()
    assert list(seen) == [1, 2]


def test_memory_that_was_never_written_holds_poison(card: Card) -> None:
    assert torch.empty(4, device="simulated:0").isnan().all().item()
    assert torch.empty(4, dtype=torch.int64, device="simulated:0").tolist() == [-1] * 4


def test_a_copy_to_the_host_arrives_when_the_host_waits_for_it(card: Card) -> None:
    there, host = card.ones(), torch.zeros(8).pin_memory()
    host.copy_(there, non_blocking=True)
    assert np.isnan(host.numpy()).all()
    assert card.host_races() != []
    card.computing.synchronize()
    assert host.tolist() == [1] * 8


def test_later_kernels_neither_deliver_a_copy_to_the_host_nor_change_it(card: Card) -> None:
    there, host = card.ones(), torch.zeros(8).pin_memory()
    host.copy_(there, non_blocking=True)
    there += 1
    assert np.isnan(host.numpy()).all()
    assert card.host_races() != []
    card.computing.synchronize()
    assert host.tolist() == [1] * 8


def test_memory_that_is_not_pinned_is_fetched_at_once_and_sent_by_way_of_a_buffer(card: Card) -> None:
    host = torch.ones(4)
    sent = card.send(host)
    host.fill_(7)
    with card.race(MISSING_WAIT):
        sent + 0
    card.computing.wait_stream(card.side)
    back = torch.zeros(4)
    back.copy_(sent, non_blocking=True)
    assert back.tolist() == [1] * 4


def test_a_blocking_copy_needs_no_wait(card: Card) -> None:
    there = pinned(1, 2).to("simulated:0")
    with card.side:
        assert (there + 1).cpu().tolist() == [2, 3]


def test_waits_are_transitive(card: Card) -> None:
    third = card.module.Stream(device="simulated:0")
    sent = card.send(pinned(3))
    third.wait_stream(card.side)
    card.computing.wait_stream(third)
    assert (sent + 0).tolist() == [3]


def test_an_event_covers_what_came_before_it_and_no_more(card: Card) -> None:
    first = card.send(pinned(3))
    event = torch.Event(device="simulated:0")
    event.record(card.side)
    second = card.send(pinned(9))
    card.computing.wait_event(event)
    assert (first + 0).tolist() == [3]
    with card.race(MISSING_WAIT):
        second + 0


def test_a_stream_that_overwrites_what_another_still_reads_is_a_race(card: Card) -> None:
    there, host = card.ones(), torch.full((8,), 5.0).pin_memory()
    there * 2

    def overwrite() -> None:
        with card.side:
            there.copy_(host, non_blocking=True)

    with card.race(MISSING_WAIT):
        overwrite()
    card.side.wait_stream(card.computing)
    overwrite()
    card.side.synchronize()
    assert there.tolist() == [5] * 8


def test_freed_memory_may_be_reused_by_its_own_stream_while_a_copy_is_queued_there(card: Card) -> None:
    there, host = card.ones(), torch.zeros(8).pin_memory()
    host.copy_(there, non_blocking=True)
    del there
    torch.zeros(8, device="simulated:0")
    card.module.synchronize(0)
    assert host.tolist() == [1] * 8


def test_memory_freed_without_record_stream_is_lost_to_a_copy_of_another_stream(card: Card) -> None:
    there, host = card.ones(), torch.zeros(8).pin_memory()
    card.fetch(there, host)
    del there
    with card.race(MISSING_RECORD):
        card.ones()
    card.side.synchronize()
    assert host.isnan().all()


def test_memory_freed_while_another_streams_kernel_uses_it_is_a_race_unless_that_is_waited_for(card: Card) -> None:
    there = card.ones()
    card.side.wait_stream(card.computing)
    with card.side:
        doubled = there * 2
    del there
    with card.race(MISSING_RECORD):
        card.ones()
    there = card.ones()
    card.side.wait_stream(card.computing)
    with card.side:
        doubled = there * 2
    del there
    card.computing.wait_stream(card.side)
    card.ones()
    assert doubled.tolist() == [2] * 8


def test_the_last_use_of_freed_memory_counts_in_whatever_order_it_is_freed(card: Card) -> None:
    first, second = card.ones(), card.ones()
    for tensor in (first, second):
        card.side.wait_stream(card.computing)
        with card.side:
            tensor.add_(1)
        if tensor is first:
            card.computing.wait_stream(card.side)
    del tensor, second
    del first
    with card.race(MISSING_RECORD):
        card.ones()


def test_record_stream_holds_a_block_back_until_the_host_knows_that_the_stream_is_done(card: Card) -> None:
    card.module.synchronize(0)
    card.module.empty_cache()
    there, host = (
        torch.ones(20 * MiB, dtype=torch.uint8, device="simulated:0"),
        torch.zeros(20 * MiB).byte().pin_memory(),
    )
    card.fetch(there, host)
    there.record_stream(card.side)
    assert card.controls.usage(0)["allocated"] == 20 * MiB
    del there
    assert card.controls.usage(0)["allocated"] == 0
    second = torch.empty(20 * MiB, dtype=torch.uint8, device="simulated:0")
    assert card.controls.usage(0)["reserved"] == 40 * MiB
    card.side.synchronize()
    assert host.min() == 1
    third = torch.empty(20 * MiB, dtype=torch.uint8, device="simulated:0")
    assert card.controls.usage(0)["reserved"] == 40 * MiB
    del second, third


def test_a_device_that_is_full_waits_for_blocks_that_are_held_back() -> None:
    controls, module = simulate([64 * MiB]), torch.get_device_module("simulated")
    side, failures = module.Stream(device="simulated:0"), controls.usage(0)["failures"]
    for _ in range(4):
        there = torch.ones(40 * MiB, dtype=torch.uint8, device="simulated:0")
        side.wait_stream(module.current_stream("simulated:0"))
        with side:
            there.sum()
        there.record_stream(side)
        del there
    assert controls.usage(0)["failures"] == failures


def test_a_block_is_reused_only_on_the_stream_that_it_was_allocated_on(card: Card) -> None:
    card.module.empty_cache()
    del_me = torch.empty(20 * MiB, dtype=torch.uint8, device="simulated:0")
    del del_me
    with card.side:
        elsewhere = torch.empty(20 * MiB, dtype=torch.uint8, device="simulated:0")
    assert card.controls.usage(0)["reserved"] == 40 * MiB
    here = torch.empty(20 * MiB, dtype=torch.uint8, device="simulated:0")
    assert card.controls.usage(0)["reserved"] == 40 * MiB
    del elsewhere, here


def test_a_copy_between_devices_is_ordered_on_both(card: Card) -> None:
    sent = card.send(pinned(1, 2))
    card.computing.wait_stream(card.side)
    there = sent.to("simulated:1", non_blocking=True)
    assert (there + 1).tolist() == [2, 3]
    del sent
    card.ones()


def test_a_copy_between_devices_waits_only_for_the_current_streams(card: Card) -> None:
    sent = card.send(pinned(1, 2))
    with card.race(MISSING_WAIT):
        sent.to("simulated:1", non_blocking=True)


def test_an_event_that_nobody_waited_for_has_no_time(card: Card) -> None:
    start, end = (torch.Event(device="simulated:0", enable_timing=True) for _ in range(2))
    start.record(card.computing)
    card.ones()
    end.record(card.computing)
    with pytest.raises(RuntimeError, match=r"completed|not ready"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) >= 0


def test_who_keeps_asking_finds_an_event_and_a_stream_done(card: Card) -> None:
    sent = card.send(pinned(4))
    event = torch.Event(device="simulated:0")
    event.record(card.side)
    assert [event.query(), event.query()] == [False, True]
    with card.side:
        sent.add_(1)
    assert [card.side.query(), card.side.query()] == [False, True]
    assert sent.tolist() == [5]


def test_the_host_may_read_what_a_copy_to_the_device_still_reads(card: Card) -> None:
    host = pinned(1, 2)
    card.send(host)
    assert host.sum().item() == 3


def test_nothing_is_copied_of_a_tensor_without_elements(card: Card) -> None:
    assert torch.empty(0).pin_memory().to("simulated:0", non_blocking=True).shape == (0,)
