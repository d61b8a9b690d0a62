"""The simulated accelerator behaves as a card does, in what we rely on."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.support.clock import wait_until
from ultimate_embedder.devices.simulated import SimulatedControls, build, simulate
from ultimate_embedder.errors import UsageError

MiB = 1 << 20


def bytes_on(device: str, count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device=device)


def test_results_are_those_of_the_cpu(two_t4s: SimulatedControls) -> None:
    x = torch.randn(64, 32)
    assert torch.equal((x.to("simulated:0") @ x.T.to("simulated:0")).cpu(), x @ x.T)


def test_devices_do_not_mix(two_t4s: SimulatedControls) -> None:
    here, there = torch.ones(4, device="simulated:0"), torch.ones(4, device="simulated:1")
    with pytest.raises(RuntimeError, match="simulated:0 and simulated:1"):
        here + there
    with pytest.raises(RuntimeError, match="simulated:0 and cpu"):
        here + torch.ones(4)
    with pytest.raises(TypeError):
        here.numpy()
    with pytest.raises(RuntimeError, match="invalid device ordinal 7: there are 2 simulated devices"):
        torch.ones(1, device="simulated:7")
    del here, there


def test_capacity_is_kept_and_an_error_says_so() -> None:
    controls = simulate([64 * MiB])
    kept = bytes_on("simulated:0", 40 * MiB)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 30.00 MiB. The device has 64.00 MiB"):
        bytes_on("simulated:0", 30 * MiB)
    del kept
    bytes_on("simulated:0", 60 * MiB)
    assert controls.usage(0)["failures"] >= 1


def test_freed_memory_stays_reserved_until_it_is_released() -> None:
    controls = simulate([256 * MiB])
    module = torch.get_device_module("simulated")
    tensor = bytes_on("simulated:0", 3 * MiB)
    assert controls.usage(0)["reserved"] == 20 * MiB  # cut from a segment
    assert controls.usage(0)["allocated"] == 3 * MiB
    del tensor
    assert (controls.usage(0)["allocated"], controls.usage(0)["reserved"]) == (0, 20 * MiB)
    module.empty_cache()
    assert controls.usage(0)["reserved"] == 0


def test_small_requests_are_rounded_and_share_a_segment() -> None:
    controls = simulate([256 * MiB])
    tensors = [bytes_on("simulated:0", 100) for _ in range(10)]
    assert controls.usage(0)["allocated"] == 10 * 512
    assert controls.usage(0)["reserved"] == 2 * MiB
    del tensors


def test_others_on_the_card_take_room_but_not_what_we_have() -> None:
    controls = simulate([100 * MiB])
    mine = bytes_on("simulated:0", 40 * MiB)
    controls.set_external(0, 90 * MiB)
    assert controls.usage(0)["external"] == 60 * MiB
    free, total = torch.get_device_module("simulated").mem_get_info(0)
    assert (free, total) == (0, 100 * MiB)
    with pytest.raises(torch.OutOfMemoryError, match=r"others hold 60\.00 MiB"):
        bytes_on("simulated:0", 2 * MiB)
    controls.set_external(0, 0)
    bytes_on("simulated:0", 2 * MiB)
    del mine


def test_the_memory_fraction_limits_what_this_process_reserves() -> None:
    controls = simulate([100 * MiB])
    torch.get_device_module("simulated").set_per_process_memory_fraction(0.5, 0)
    bytes_on("simulated:0", 50 * MiB)
    with pytest.raises(torch.OutOfMemoryError, match=r"this process may reserve 50\.00 MiB"):
        bytes_on("simulated:0", 60 * MiB)
    assert controls.usage(0)["high_water"] == 50 * MiB


def test_a_failure_can_be_injected_once() -> None:
    controls = simulate([100 * MiB])
    controls.fail_after(0, 1)
    bytes_on("simulated:0", 10)
    with pytest.raises(torch.OutOfMemoryError):
        bytes_on("simulated:0", 10)
    bytes_on("simulated:0", 10)


def test_bytes_between_host_and_devices_are_counted(two_t4s: SimulatedControls) -> None:
    before = two_t4s.traffic()
    host = torch.ones(1000)
    here = host.to("simulated:0")
    there = here.to("simulated:1")
    there.cpu()
    after = two_t4s.traffic()
    moved = {name: after[name] - before[name] for name in after}
    assert moved == {"host_to_device": 4000, "device_to_host": 4000, "between_devices": 4000, "within_device": 0}
    del here, there


def test_matrix_products_keep_a_workspace_per_stream_until_it_is_cleared() -> None:
    controls = simulate([15 << 30])
    square, side = torch.ones(4, 4, device="simulated:0"), torch.Stream(device="simulated:0")
    before = controls.usage(0)["allocated"]

    def kept() -> int:
        square @ square
        return controls.usage(0)["allocated"] - before

    assert controls.usage(0)["allocated"] == before
    assert [kept(), kept()] == [8_519_680] * 2
    side.wait_stream(torch.accelerator.current_stream(0))
    with side:
        assert kept() == 2 * 8_519_680
    torch.get_device_module("simulated").clear_workspaces()
    assert controls.usage(0)["allocated"] == before
    torch.accelerator.current_stream(0).wait_stream(side)
    controls.set_workspace(0, 4096)
    assert kept() == 4096


def test_a_device_without_room_for_a_workspace_is_out_of_memory_at_the_first_product() -> None:
    controls = simulate([64 * MiB])
    controls.set_workspace(0, 70 * MiB)
    square = torch.ones(4, 4, device="simulated:0")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 70\.00 MiB"):
        square @ square


def test_streams_events_and_pinned_memory_have_the_interface_of_a_card(two_t4s: SimulatedControls) -> None:
    side = torch.Stream(device="simulated:1")
    start, end = (torch.Event(device="simulated:1", enable_timing=True) for _ in range(2))
    host = torch.ones(100).pin_memory()
    assert host.is_pinned()
    with side:
        start.record()
        copied = host.to("simulated:1", non_blocking=True)
        end.record()
    torch.accelerator.current_stream(1).wait_event(end)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert copied.sum().item() == 100
    del copied
    gc.collect()


def test_unequal_devices_and_their_number() -> None:
    simulate([10 * MiB, 20 * MiB, 30 * MiB])
    module = torch.get_device_module("simulated")
    assert [module.mem_get_info(device)[1] for device in range(3)] == [10 * MiB, 20 * MiB, 30 * MiB]
    with pytest.raises(UsageError, match="there can be 1 to 16 simulated devices, not 17"):
        simulate([MiB] * 17)


def test_a_missing_compiler_is_a_plain_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UsageError, match=r"g\+\+ is not here. Install it .* or use --devices cpu"):
        build.load_extension()


def test_importing_the_devices_registers_nothing() -> None:
    program = "import ultimate_embedder.devices, torch; print(torch.accelerator.is_available())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("all_devices", [False, True])
def test_a_dead_device_raises_at_every_call_and_frees_without_a_word(all_devices: bool) -> None:
    controls = simulate([64 * MiB, 64 * MiB])
    dead, other = (torch.ones(4, device=f"simulated:{number}") for number in range(2))
    controls.die_after(0, 1, "CUDA error: unspecified launch failure", all_devices=all_devices)
    dead + dead
    dead + dead  # dies of it, and nobody is told before the next call
    empty_cache = torch.get_device_module("simulated").empty_cache
    for ask in (
        partial(torch.add, dead, dead),
        dead.cpu,
        partial(torch.ones(4).to, "simulated:0"),
        partial(torch.accelerator.synchronize, 0),
        partial(torch.accelerator.get_memory_info, 0),
        empty_cache,
    ):
        with pytest.raises(getattr(torch, "AcceleratorError", RuntimeError), match="unspecified launch failure"):
            ask()
    if all_devices:
        with pytest.raises(RuntimeError, match="unspecified launch failure"):
            other + other
    else:
        assert (other + other).sum() == 8
    del dead, other, ask
    assert [controls.usage(number)["allocated"] for number in range(2)] == [0, 0]
    controls.resize([64 * MiB] * 2)
    assert torch.ones(4, device="simulated:0").sum() == 4


@pytest.mark.parametrize(
    "freed",
    [
        "used.record_stream(torch.Stream(device='simulated:0')); del used",
        "pinned.copy_(used, non_blocking=True); del pinned",
    ],
    ids=["used by another stream", "pinned"],
)
def test_memory_that_a_stream_of_a_dead_device_has_used_must_not_be_freed(freed: str) -> None:
    """As on a card: torch records an event in a destructor, which raises there."""
    use, free = freed.split("; ")
    program = f"""
import torch
from ultimate_embedder.devices.simulated import simulate
controls = simulate([64 << 20])
used, pinned = torch.ones(4, device="simulated:0"), torch.empty(4).pin_memory()
{use}
controls.die_after(0, 0, "device-side assert triggered")
torch.ones(4, device="simulated:0")
try:
    torch.ones(4, device="simulated:0")
except RuntimeError:
    print("still here", flush=True)
{free}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "still here\n")
    assert "terminate called" in done.stderr


def test_pinned_memory_that_was_freed_before_a_device_died_makes_the_next_allocation_fail_once() -> None:
    controls = simulate([64 * MiB] * 2)
    torch.ones(4).pin_memory().to("simulated:0", non_blocking=True)
    controls.die_after(0, 0, "CUDA error: unspecified launch failure")
    torch.ones(4, device="simulated:0")
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        torch.ones(4).pin_memory()
    assert torch.ones(4).pin_memory().is_pinned()
    controls.resize([64 * MiB] * 2)


def test_freed_pinned_memory_is_not_used_again_before_a_copy_from_it_is_done() -> None:
    controls = simulate([64 * MiB])
    before = controls.pinned()["bytes"]
    sent = torch.full((1024,), 3.0).pin_memory().to("simulated:0", non_blocking=True)
    assert controls.pinned()["bytes"] == before
    others = [torch.zeros(1024).pin_memory() for _ in range(8)]
    assert sent.sum().item() == 3 * 1024
    del others, sent


def test_who_waits_for_a_device_that_hangs_waits_until_it_is_released() -> None:
    controls = simulate([64 * MiB])
    event = torch.Event(device="simulated:0")
    event.record(torch.accelerator.current_stream("simulated:0"))
    controls.hang(0)
    waiting = threading.Thread(target=event.synchronize, daemon=True)
    waiting.start()
    assert torch.accelerator.get_memory_info(0)[1] == 64 * MiB
    assert waiting.is_alive()
    controls.release(0)
    wait_until(lambda: not waiting.is_alive())


def test_a_norm_of_nothing_is_nothing_in_half_precision(two_t4s: SimulatedControls) -> None:
    """The padding token of some models: its epsilon is too small for half precision, so kernels have it in full."""
    zeros = torch.zeros(2, 8, dtype=torch.float16, device="simulated:0")
    assert torch.nn.functional.layer_norm(zeros, [8], eps=1e-12).abs().sum().item() == 0
