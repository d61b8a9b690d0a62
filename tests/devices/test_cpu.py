"""The cores of a CPU work apart."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, machine
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.models import LayerStream, NotApplicableError


def test_there_is_a_part_for_each_core_that_may_be_used() -> None:
    assert len(CpuDevice().parts()) == machine.usable_cores()
    assert len(CpuDevice(workers=3).parts()) == 3


@pytest.mark.parametrize(
    ("quota", "expected"), [("50000 100000", 1), ("100000 100000", 1), ("garbage", None), ("max 1", None)]
)
def test_the_quota_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int | None
) -> None:
    before = machine.usable_cores()
    monkeypatch.setattr(machine, "CGROUP_QUOTA", tmp_path / "cpu.max")
    unlimited = machine.usable_cores()
    assert unlimited >= before
    (tmp_path / "cpu.max").write_text(quota)
    assert machine.usable_cores() == (expected or unlimited)


def test_a_thread_that_computes_uses_one_core_and_the_others_are_left_alone() -> None:
    seen = {}
    before = torch.get_num_threads()

    def work() -> None:
        with CpuDevice().computing():
            seen["inside"] = torch.get_num_threads()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen["inside"] == 1
    assert torch.get_num_threads() == before


def test_workers_share_one_copy_of_the_weights(write_chunks: WriteChunks, tmp_path: Path) -> None:
    chunks = write_chunks([f"text {number}" for number in range(20)])
    model = str(tiny_model("bert"))
    summary = embed(chunks, tmp_path / "out", models=[model], devices="cpu", exports="none", quiet=True)
    (released,) = [lease for lease in summary.collections[0].leases if lease.event_type == "release"]
    cores = machine.usable_cores()
    assert released.placement == "1 copy, on cpu" + (f", shared by {cores} workers" if cores > 1 else "")


def test_nothing_runs_beside_the_program_so_streams_have_nothing_to_wait_for() -> None:
    device, tensor = CpuDevice(), torch.ones(3)
    side, event = device.side_stream(), device.event()
    with device.use_stream(side):
        doubled = device.pin(tensor) * 2
        event.record(side)
    device.current_stream().wait_event(event)
    device.current_stream().wait_stream(side)
    assert doubled.tolist() == [2, 2, 2]


def test_there_is_nothing_to_stream_to_a_cpu() -> None:
    with pytest.raises(NotApplicableError, match="is the host"):
        LayerStream(torch.nn.Linear(2, 2), CpuDevice())
