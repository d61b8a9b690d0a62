"""Errors and memory as real cards have them, on simulated ones that were taught to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.devices import MemoryLimits, open_devices
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
