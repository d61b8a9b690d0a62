from __future__ import annotations

import functools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ultimate_embedder.devices import nvidia

# in a process of its own: the settings are torch's, for good
SETTINGS = """
import torch
from ultimate_embedder.devices.nvidia import prepare_nvidia
prepare_nvidia()
print(torch._C._accelerator_getAllocatorSettings())
print(torch.backends.cuda.cudnn_sdp_enabled())
"""


@functools.cache
def settings(**environment: str) -> list[str]:
    variables = {name: value for name, value in os.environ.items() if name not in nvidia.ALLOCATOR_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SETTINGS],
        env={**variables, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_allocator_is_set_after_torch_was_imported() -> None:
    assert settings()[0] == "expandable_segments:True"


def test_the_allocator_settings_of_the_user_are_kept() -> None:
    assert "expandable" not in settings(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128")[0]


def test_attention_of_cudnn_is_off_as_it_plans_anew_for_every_shape() -> None:
    assert settings()[1] == settings(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128")[1] == "False"


@pytest.mark.parametrize(
    ("processes", "context"),
    [
        ({1: 900, os.getpid(): 700}, 300),  # of 700, 400 are the allocator's
        ({1: 700}, 300),  # in a container our number is unknown, and a single process can only be ours
        ({1: 900, 2: 700}, None),
        ({os.getpid(): None}, None),  # a driver that does not tell
        ({}, None),
    ],
)
def test_our_own_context_is_told_from_other_processes(
    processes: dict[int, int | None], context: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NVMLError(Exception):
        pass

    listed = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes.items()]
    library = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: listed,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(nvidia, "_uuid", lambda index: "GPU-0")
    assert nvidia.nvidia_vendor().context_bytes(0, 400) == context


def test_without_the_management_library_the_context_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia.nvidia_vendor().context_bytes(0, 400) is None
