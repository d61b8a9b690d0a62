"""Leases with real models on simulated devices: what a lease takes it gives back, byte for byte."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.leases import ReportingLeases
from tests.support.tiny_models import tiny_model
from ultimate_embedder.config import Parallelism
from ultimate_embedder.devices import Device, MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.events import Event, LeaseReleased, ModelEvicted
from ultimate_embedder.execution.placement import Placement, place
from ultimate_embedder.models import Encoder, LoadedModel, load_encoder, repeated_layers, resolve_model

MiB = 1 << 20
PARALLELISMS: tuple[Parallelism, ...] = ("replicas", "data-parallel", "none")
every_parallelism = pytest.mark.parametrize("parallelism", PARALLELISMS)


class Bench:
    """Two devices with a stranger's tensor on the first, and the book of their leases."""

    def __init__(self) -> None:
        self.controls: SimulatedControls = simulate([64 * MiB, 64 * MiB])
        self.devices: list[Device] = open_devices("simulated:2x64MiB", MemoryLimits())
        self.seen: list[Event] = []
        self.leases = ReportingLeases(self.seen.append)
        self.stranger = torch.empty(3000, dtype=torch.uint8, device="simulated:0")
        self.before = self.allocated()

    def allocated(self) -> list[int]:
        return [self.controls.usage(device)["allocated"] for device in range(2)]

    def released(self) -> LeaseReleased:
        return [event for event in self.seen if isinstance(event, LeaseReleased)][-1]

    def place(self, encoder: Encoder, parallelism: Parallelism, devices: list[Device] | None = None) -> Placement:
        return place(encoder, devices or self.devices, parallelism, lambda kind, details: None)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    assert bench.before == [3072, 0]
    yield bench
    bench.leases.close()
    assert bench.allocated() == bench.before


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return load("bert")


def load(architecture: Any) -> Encoder:
    return load_encoder(resolve_model(str(tiny_model(architecture))), "float32", "cpu")


def run_batch(encoder: LoadedModel) -> np.ndarray:
    """Vectors of a batch; nothing of it stays on the device."""
    assert isinstance(encoder, Encoder)
    texts = encoder.tokenize([f"{number} words in a row" for number in range(16)])
    return np.asarray(encoder.forward(encoder.batch(texts, np.arange(16))).cpu().numpy())


@every_parallelism
def test_a_lease_gives_back_every_byte(bench: Bench, encoder: Encoder, parallelism: Parallelism) -> None:
    reference = run_batch(encoder)
    for _ in range(2):
        with bench.leases.lease("model", bench.devices) as lease:
            placed = lease.occupy(Placement, lambda: bench.place(encoder, parallelism))
            assert bench.allocated() > bench.before
            for seat, _device in placed.seats:
                assert np.abs(run_batch(seat) - reference).max() < 1e-5
        assert [now.allocated_bytes for now in bench.released().memory] == bench.allocated() == bench.before
        assert bench.released().leftovers == []
    assert encoder.device.type == "cpu"
    assert np.abs(run_batch(encoder) - reference).max() == 0


@every_parallelism
def test_weights_are_where_the_parallelism_says(bench: Bench, encoder: Encoder, parallelism: Parallelism) -> None:
    with bench.leases.lease("model", bench.devices) as lease:
        lease.occupy(Placement, lambda: bench.place(encoder, parallelism))
        taken = [now - then for now, then in zip(bench.allocated(), bench.before, strict=True)]
    assert [count >= encoder.weight_bytes for count in taken] == [True, parallelism == "replicas"]


@every_parallelism
def test_an_allocation_that_fails_in_mid_forward_costs_nothing_for_long(
    bench: Bench, encoder: Encoder, parallelism: Parallelism
) -> None:
    def place_and_fail() -> None:
        with bench.leases.lease("model", bench.devices) as lease:
            placed = lease.occupy(Placement, lambda: bench.place(encoder, parallelism))
            bench.controls.fail_after(0 if parallelism == "none" else 1, 40)
            run_batch(placed.seats[-1][0])

    with pytest.raises(torch.OutOfMemoryError):
        place_and_fail()
    gc.collect()
    assert bench.allocated() == bench.before
    assert encoder.device.type == "cpu"


@every_parallelism
def test_an_error_in_mid_forward_costs_nothing_for_long(
    bench: Bench, encoder: Encoder, parallelism: Parallelism
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("broken kernel")

    def place_and_fail() -> None:
        with bench.leases.lease("model", bench.devices) as lease:
            placed = lease.occupy(Placement, lambda: bench.place(encoder, parallelism))
            with repeated_layers(encoder.model)[-1].register_forward_pre_hook(fail):
                run_batch(placed.seats[0][0])

    with pytest.raises(RuntimeError, match="broken kernel"):
        place_and_fail()
    gc.collect()
    assert bench.allocated() == bench.before
    with bench.leases.lease("model", bench.devices, wait_s=0):
        assert encoder.device.type == "cpu"


@every_parallelism
def test_what_is_kept_is_the_weights_and_goes_in_the_end(
    bench: Bench, encoder: Encoder, parallelism: Parallelism
) -> None:
    with bench.leases.lease("model", bench.devices, keep=True) as lease:
        placed = lease.occupy(Placement, lambda: bench.place(encoder, parallelism))
        held = bench.allocated()
        vectors = run_batch(placed.seats[0][0])
    assert bench.allocated() == held
    copies = 2 if parallelism == "replicas" else 1
    assert bench.released().kept_bytes == encoder.weight_bytes * copies
    with bench.leases.lease("model", bench.devices, keep=True) as lease:
        assert isinstance(lease.resident, Placement)
        assert np.abs(run_batch(placed.seats[0][0]) - vectors).max() == 0
    bench.leases.close()
    assert bench.allocated() == bench.before
    assert bench.released().leftovers == []


def test_a_kept_model_gives_way_to_one_that_needs_its_room(bench: Bench, encoder: Encoder) -> None:
    companion = load("xlm-roberta")
    with bench.leases.lease("primary", bench.devices, keep=True) as lease:
        lease.occupy(Placement, lambda: bench.place(encoder, "replicas"))
    room = bench.devices[1].hold_ceiling().usable_bytes
    with bench.leases.lease("companion", bench.devices, needed_bytes=room + 1) as lease:
        assert bench.allocated() == bench.before
        lease.occupy(Placement, lambda: bench.place(companion, "replicas"))
    assert bench.allocated() == bench.before
    assert [event.model for event in bench.seen if isinstance(event, ModelEvicted)] == ["primary"]
    assert encoder.device.type == "cpu"


def test_models_of_one_party_leave_a_shared_device_one_after_the_other(bench: Bench, encoder: Encoder) -> None:
    companion, shared = load("xlm-roberta"), bench.devices[:1]
    with bench.leases.lease("primary", shared, party="run") as lease:
        lease.occupy(Placement, lambda: bench.place(encoder, "replicas", shared))
        alone = bench.allocated()
        with bench.leases.lease("companion", shared, party="run") as other:
            other.occupy(Placement, lambda: bench.place(companion, "replicas", shared))
            assert bench.allocated() > alone
        assert bench.allocated() == alone
        assert bench.released().leftovers == []
    assert bench.allocated() == bench.before
    assert bench.released().leftovers == []


def test_what_matrix_products_keep_goes_with_the_last_lease(bench: Bench, encoder: Encoder) -> None:
    companion, (first, second) = load("xlm-roberta"), bench.devices
    with bench.leases.lease("primary", [first], party="run") as lease:
        placed = lease.occupy(Placement, lambda: bench.place(encoder, "replicas", [first]))
        with bench.leases.lease("companion", [second], party="run") as other:
            other.occupy(Placement, lambda: bench.place(companion, "replicas", [second]))
            run_batch(companion)
        kept = bench.allocated()[1]
        assert kept > 0  # while the other model computes nothing may be taken from it
        assert bench.released().leftovers == []
        run_batch(placed.seats[0][0])
    assert bench.allocated() == bench.before
    assert [bench.controls.usage(device)["reserved"] for device in range(2)] == [2 * MiB, 0]  # the stranger's
    assert bench.released().leftovers == []


def test_a_wrapper_that_somebody_holds_is_reported(bench: Bench, encoder: Encoder) -> None:
    with bench.leases.lease("model", bench.devices) as lease:
        placed = lease.occupy(Placement, lambda: bench.place(encoder, "data-parallel"))
        held = placed.seats[0][0].wrapper
    assert bench.released().leftovers == ["a DataParallel wrapper that somebody holds"]
    assert held is not None
    assert bench.allocated() == bench.before  # its weights are gone all the same


def test_a_tensor_that_somebody_holds_is_reported_where_it_is(bench: Bench, encoder: Encoder) -> None:
    with bench.leases.lease("model", bench.devices) as lease:
        lease.occupy(Placement, lambda: bench.place(encoder, "replicas"))
        held = torch.zeros(1000, dtype=torch.uint8, device="simulated:1")
    assert bench.released().leftovers == ["1024 bytes on simulated:1"]
    del held


def test_a_hook_that_somebody_has_hung_in_is_reported(bench: Bench, encoder: Encoder) -> None:
    with bench.leases.lease("model", bench.devices) as lease:
        lease.occupy(Placement, lambda: bench.place(encoder, "none"))
        hook = encoder.model.register_forward_hook(lambda *_: None)
    hook.remove()
    assert bench.released().leftovers == ["1 hooks on tiny-bert"]


def test_a_model_that_no_device_has_room_for_leaves_nothing_either(bench: Bench, encoder: Encoder) -> None:
    for device in range(2):
        bench.controls.set_external(device, 60 * MiB)
    reports = []
    with bench.leases.lease("model", bench.devices) as lease:
        lease.occupy(
            Placement,
            lambda: place(encoder, bench.devices, "replicas", lambda kind, details: reports.append(kind.kind)),
        )
        assert bench.allocated() == bench.before
    assert reports == ["device_without_room", "device_without_room", "weights_on_host"]
    assert bench.released().leftovers == []
