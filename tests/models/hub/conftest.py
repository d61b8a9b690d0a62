"""A hub, machines that use it, and models that it serves."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import transformers
from safetensors.numpy import save_file

from tests.support.hub_here import use_hub_here
from tests.support.hub_server import HubServer, dead
from tests.support.machine import (
    HUB_ID,
    WEIGHTS,
    ColdRun,
    Machine,
    Result,
    RunHere,
)
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main

OTHER_FORMATS = ("onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "pytorch_model.bin")
OLD_CLIENT = "1.11.0"


@dataclasses.dataclass(frozen=True)
class MachineHere(Machine):
    """A machine whose command line runs in this process, where torch is loaded already."""

    run_here: RunHere

    def run(self, *arguments: object, **variables: str) -> Result:
        with pytest.MonkeyPatch.context() as patched:
            use_hub_here(self.hub, self.folder, patched)
            for name, value in variables.items():
                patched.setenv(name, value)
            return self.run_here([*map(str, arguments), "--cache-dir", str(self.cache)])


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]) -> RunHere:
    """Run the command line in this process, where torch is loaded already. Give it `--cache-dir`."""

    def run(arguments: Sequence[str]) -> Result:
        code = main(arguments)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may neither connect nor look up a name."""

    def forbid(*arguments: object, **options: object) -> NoReturn:
        raise AssertionError(f"the network was used: {arguments}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, forbid)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, forbid)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, hub: HubServer) -> Machine:
    return Machine(tmp_path, hub.url)


@pytest.fixture
def machine_here(tmp_path: Path, hub: HubServer, run_here: RunHere) -> MachineHere:
    return MachineHere(tmp_path, hub.url, run_here)


@pytest.fixture
def dead_here(tmp_path: Path, run_here: RunHere) -> MachineHere:
    """A machine whose hub does not answer."""
    return MachineHere(tmp_path, dead(), run_here)


@pytest.fixture
def hub_here(hub: HubServer, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The hub of this process too."""
    use_hub_here(machine.hub, machine.folder, monkeypatch)
    return hub


@pytest.fixture(scope="session")
def model() -> Path:
    return tiny_model("xlm-roberta")


@pytest.fixture(scope="session")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The vectors of the model when it is loaded from its folder."""
    machine = Machine(tmp_path_factory.mktemp("reference"), dead())
    embed(machine.chunks, machine.folder / "out", models=[str(model)], exports=["npy"], quiet=True)
    return machine.vectors()


@pytest.fixture(scope="session")
def sharded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with its weights in several files."""
    folder = Path(shutil.copytree(model, tmp_path_factory.mktemp("sharded") / "model"))
    (folder / WEIGHTS).unlink()
    loaded: Any = transformers.AutoModel.from_pretrained(model)
    loaded.save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("model-*.safetensors"))) >= 3
    return folder


@pytest.fixture(scope="session")
def cold_files(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as many repositories have it: with its weights in other formats beside."""
    folder = Path(shutil.copytree(model, tmp_path_factory.mktemp("served") / "model"))
    for name in OTHER_FORMATS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"the same weights once more")
    return folder


@pytest.fixture(scope="session")
def cold(cold_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColdRun]:
    with HubServer() as hub:
        machine = Machine(tmp_path_factory.mktemp("cold"), hub.url)
        commit = hub.publish(HUB_ID, cold_files)
        result = machine.embed()
        yield ColdRun(machine, commit, result, [request.path for request in hub.requests])


@pytest.fixture(scope="session")
def pulled(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine that has the sharded model in its cache."""
    with HubServer() as hub:
        hub.publish(HUB_ID, sharded)
        machine = Machine(tmp_path_factory.mktemp("pulled"), hub.url)
        done = machine.pull()
        assert done.code == 0, done.err
    return machine


@pytest.fixture(scope="session")
def large(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as of a model, with weights of 32 MiB."""
    folder = Path(shutil.copytree(model, tmp_path_factory.mktemp("large") / "model"))
    save_file({"weight": np.arange(8 << 20, dtype=np.float32)}, folder / WEIGHTS)
    return folder


@pytest.fixture(scope="session")
def old_client(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the hub client of Kaggle, to be put before the installed one."""
    folder = str(tmp_path_factory.mktemp("old-client"))
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
    done = subprocess.run([*install, f"huggingface_hub=={OLD_CLIENT}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot install huggingface_hub {OLD_CLIENT}: {done.stderr.strip().splitlines()[-1]}")
    command = [sys.executable, "-c", "import huggingface_hub; print(huggingface_hub.__version__)"]
    version = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": folder}, capture_output=True, text=True, check=True
    )
    assert version.stdout.strip() == OLD_CLIENT
    return folder
