from __future__ import annotations

from pathlib import Path

import pytest

from ultimate_embedder.devices import CpuDevice, MemoryLimits, open_devices
from ultimate_embedder.errors import UsageError

GB, GiB = 10**9, 1 << 30
SOURCE = Path(__file__).resolve().parents[2] / "src" / "ultimate_embedder"


def test_the_first_device_has_a_ceiling_of_12_gb() -> None:
    limits = MemoryLimits()
    assert limits.ceiling_bytes(0, 15 * GiB) == 12 * GB
    assert limits.ceiling_bytes(1, 15 * GiB) == int(15 * GiB * 0.92)


def test_a_card_larger_than_a_t4_has_no_ceiling_but_the_margin() -> None:
    assert MemoryLimits().ceiling_bytes(0, 24 * GiB) == int(24 * GiB * 0.92)
    assert MemoryLimits(gpu0_ceiling_bytes=12 * GB).ceiling_bytes(0, 24 * GiB) == 12 * GB


def test_a_small_first_device_keeps_the_margin() -> None:
    assert MemoryLimits().ceiling_bytes(0, 8 * GiB) == int(8 * GiB * 0.92)


def test_what_set_a_ceiling_is_told() -> None:
    margin = "8% below its total (--safety-margin)"
    assert MemoryLimits().ceiling(0, 15 * GiB).reason == "default for a first GPU of up to 16 GiB (--gpu0-ceiling)"
    assert MemoryLimits(gpu0_ceiling_bytes=12 * GB).ceiling(0, 15 * GiB).reason == "--gpu0-ceiling"
    assert MemoryLimits(gpu0_ceiling_bytes=15 * GiB).ceiling(0, 15 * GiB).reason == margin
    assert [MemoryLimits().ceiling(index, 24 * GiB).reason for index in (0, 1)] == [margin, margin]


@pytest.mark.parametrize("word", ["gpu", "simulated", "simulated:2xbig", "simulated:", "simulated:0x1GiB"])
def test_devices_that_make_no_sense_are_refused(word: str) -> None:
    with pytest.raises(UsageError, match="simulated"):
        open_devices(word, MemoryLimits())


def test_the_cpu_is_one_device_in_fp32_with_a_small_budget() -> None:
    (device,) = open_devices("cpu", MemoryLimits())
    assert isinstance(device, CpuDevice)
    assert device.dtype("auto") == "float32"
    assert not device.has_ceiling
    assert device.fixed_budget_tokens == 1024
    snapshot = device.snapshot()
    assert 0 < snapshot.allocated_bytes <= snapshot.peak_bytes
    assert snapshot.allocated_bytes < snapshot.total_bytes


def test_only_one_file_knows_nvidia_cards_by_name() -> None:
    naming = [path for path in SOURCE.rglob("*.py") if "cuda" in path.read_text("utf-8").lower()]
    assert naming == [SOURCE / "devices" / "nvidia.py"]


@pytest.mark.parametrize("word", ["torch.OutOfMemoryError", "torch.accelerator", "get_device_module", "pin_memory"])
def test_only_devices_know_how_torch_drives_a_card(word: str) -> None:
    naming = [path for path in SOURCE.rglob("*.py") if word in path.read_text("utf-8")]
    assert all(path.is_relative_to(SOURCE / "devices") for path in naming), naming
