"""Errors and memory as real cards have them, on simulated ones that were taught to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.devices import DeviceGroup, MemoryLimits, is_gone, open_devices
from ultimate_embedder.devices.lost import is_doubtful
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.errors import UsageError
from ultimate_embedder.summary import RunSummary

MiB = 1 << 20
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
NO_ROOM = (
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
)
TEXTS = [f"{number} " + "word " * (number % 30) for number in range(60)]

Run = Callable[..., RunSummary]


@pytest.fixture
def run(write_chunks: WriteChunks, tmp_path: Path) -> Run:
    chunks = write_chunks(TEXTS)

    def embed_on(devices: str, **options: object) -> RunSummary:
        model = str(tiny_model("bert", hidden=64, layers=2))
        return embed(chunks, tmp_path / "out", models=model, devices=devices, exports="npy", **options)  # type: ignore[arg-type]

    return embed_on


@pytest.mark.parametrize("text", NO_ROOM)
def test_a_batch_that_has_no_room_is_mitigated_by_whatever_name_the_error_has(
    text: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:

    def no_room(controls: SimulatedControls) -> None:
        controls.set_allocation_error(0, text)
        controls.fail_after(0, 100)  # in the first forward

    have_trouble(monkeypatch, no_room)
    (collection,) = run("simulated:64MiB").collections
    assert collection.status == "completed", collection.error
    assert any(each.type.startswith("oom_") for each in collection.mitigations)


def test_a_library_that_cannot_start_with_much_memory_free_is_not_out_of_memory() -> None:
    simulate([2048 * MiB])
    (device,) = open_devices("simulated:2GiB", MemoryLimits())
    broken = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    assert not device.is_out_of_memory(broken)
    assert not device.is_out_of_memory(ValueError("out of memory"))
    assert device.is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasLtMatmul`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ],
)
def test_what_a_full_card_s_libraries_raise_is_out_of_memory_on_every_card_of_a_group(text: str) -> None:
    controls = simulate([4096 * MiB] * 2)
    devices = open_devices("simulated:2x4GiB", MemoryLimits())
    error = RuntimeError(f"Caught RuntimeError in replica 1 on device 1.\n{text}")
    assert not any(device.is_out_of_memory(error) for device in devices)
    controls.set_external(1, 3900 * MiB)
    assert [device.is_out_of_memory(error) for device in devices] == [False, True]
    assert DeviceGroup(devices, 0).is_out_of_memory(error)


def test_the_allocator_s_failure_to_describe_that_it_has_no_room_is_out_of_memory() -> None:
    (device,) = open_devices("simulated:2GiB", MemoryLimits())  # its limit may be reached with much memory free
    place = '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1016'
    assert device.is_out_of_memory(RuntimeError(f"NVML_SUCCESS == r INTERNAL ASSERT FAILED at {place}, please report"))


def test_a_lost_card_is_never_out_of_memory() -> None:
    controls = simulate([64 * MiB] * 2)
    devices = open_devices("simulated:2x64MiB", MemoryLimits())
    broken = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    devices[0].retire("it fell off the bus")
    controls.die_after(1, 0, "CUDA error: unspecified launch failure")
    torch.ones(4, device="simulated:1")
    assert [device.is_out_of_memory(broken) for device in devices] == [False, False]
    assert [device.is_lost(broken) for device in devices] == [True, True]
    controls.resize([64 * MiB])


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", True),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", True),
        ("CUDA error: an error occurred on the external device", False),
        ("CUDA error: system not yet initialized", False),
    ],
)
def test_any_error_of_the_driver_is_a_reason_to_try_a_kernel(text: str, gone: bool) -> None:
    assert is_gone(text) == gone
    assert is_doubtful(RuntimeError(f"{text}\nCUDA kernel errors might be asynchronously reported")) or gone


def test_caches_are_emptied_only_if_that_helps_a_card_over_its_ceiling() -> None:
    controls = simulate([1024 * MiB] * 2)
    devices = open_devices("simulated:2x1GiB", MemoryLimits())
    kept = torch.empty(300 * MiB, dtype=torch.uint8, device="simulated:1")
    for device in (0, 1):
        torch.empty(100 * MiB, dtype=torch.uint8, device=f"simulated:{device}")  # cached from now on
    before = controls.empty_cache_calls()
    devices[1].hold_ceiling()
    assert controls.empty_cache_calls() == before  # it is not over its ceiling
    for _ in range(10):
        controls.set_external(1, 700 * MiB)
        assert devices[1].hold_ceiling().reserved_bytes == 300 * MiB
    assert controls.empty_cache_calls() == before + 1
    assert devices[0].snapshot().reserved_bytes == 0
    torch.empty(100 * MiB, dtype=torch.uint8, device="simulated:0")
    devices[1].hold_ceiling()
    assert devices[0].snapshot().reserved_bytes == 100 * MiB
    del kept


def test_what_cannot_be_released_is_not_tried_again_for_every_batch() -> None:
    controls = simulate([1024 * MiB])
    (device,) = open_devices("simulated:1GiB", MemoryLimits())
    small = [torch.empty(9 * MiB, dtype=torch.uint8, device="simulated:0") for _ in range(8)]
    del small[1::2]  # holes in segments that are in use
    controls.set_external(0, 1024 * MiB)
    before = controls.empty_cache_calls()
    for _ in range(10):
        device.hold_ceiling()
    assert controls.empty_cache_calls() <= before + 1
    del small


def test_nothing_of_a_run_is_left_in_the_process(run: Run) -> None:
    module = torch.get_device_module("simulated")
    module.set_device(0)
    (collection,) = run("simulated:2x64MiB").collections
    assert collection.status == "completed", collection.error
    assert module.current_device() == 0
    controls = simulate([64 * MiB] * 2)
    assert [controls.usage(device)["limit"] for device in range(2)] == [64 * MiB] * 2


def test_a_card_without_kernels_is_left_out_with_the_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    have_trouble(monkeypatch, lambda controls: controls.set_kernel_error(0, NO_KERNEL))
    summary = run("simulated:2x64MiB")
    (collection,) = summary.collections
    assert collection.status == "completed", collection.error
    assert set(collection.passes[0].tokens_by_device) == {"simulated:1"}
    (warning,) = [each for each in summary.warnings if "simulated:0" in each]
    assert "is not used" in warning
    assert "no kernels for it" in warning


def test_no_card_that_can_compute_is_an_error_that_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    have_trouble(monkeypatch, lambda controls: controls.set_kernel_error(0, NO_KERNEL))
    with pytest.raises(UsageError, match="none of these cards can compute"):
        run("simulated:64MiB")


def test_the_process_s_own_context_is_not_taken_for_other_processes() -> None:
    controls = simulate([100 * MiB])
    (device,) = open_devices(f"simulated:{100 * MiB}", MemoryLimits())
    controls.set_context(0, 30 * MiB)
    controls.set_external(0, 5 * MiB)
    now = device.snapshot()
    assert (now.context_bytes, now.external_bytes) == (30 * MiB, 5 * MiB)
    assert now.usable_bytes == (92 - 30 - 5) * MiB


def have_trouble(monkeypatch: pytest.MonkeyPatch, trouble: Callable[..., None]) -> None:
    """Have trouble on the devices that the next run opens."""
    import ultimate_embedder.devices.open as opening

    def troubled(capacities: list[int]) -> object:
        controls = simulate(capacities)
        trouble(controls)
        return controls

    monkeypatch.setattr(opening, "simulate", troubled)
