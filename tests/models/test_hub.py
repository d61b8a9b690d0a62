"""Models from a hub: cold, warm, offline, through faults, moved on, interrupted and damaged."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import transformers
from safetensors.numpy import save_file

from tests.support.hub_here import PATIENT, use_hub_here
from tests.support.hub_server import Fault, HubServer, dead
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main

KEY, HUB_ID = "bge-m3", "BAAI/bge-m3"
OTHER_KEY, OTHER_HUB_ID = "qwen3-embedding-0.6b", "Qwen/Qwen3-Embedding-0.6B"
CODE_KEY, CODE_HUB_ID = "coderankembed", "nomic-ai/CodeRankEmbed"
OLD_CLIENT = "1.11.0"
WEIGHTS = "model.safetensors"
GET_WEIGHTS = rf"GET .*/resolve/.*/{WEIGHTS}$"
OTHER_FORMATS = ("onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "pytorch_model.bin")
RETRY_LINE = re.compile(r"attempt \d+.*\d s\b")
TEXTS = [f"text number {number}, " * (number % 7 + 1) for number in range(12)]
IMPATIENT = PATIENT | {"ULTIMATE_EMBEDDER_RETRY_TOTAL_S": "1"}
SHORT_TIMEOUTS = {"HF_HUB_DOWNLOAD_TIMEOUT": "1", "HF_HUB_ETAG_TIMEOUT": "1"}
# runs the command line with KEY pinned to the commit that comes first
PINNED = f"""
import dataclasses, sys
from ultimate_embedder.cli import main
from ultimate_embedder.models import registry
commit = sys.argv.pop(1)
registry.MODELS = tuple(
    dataclasses.replace(spec, revision=commit) if spec.key == {KEY!r} else spec for spec in registry.MODELS
)
sys.exit(main())
"""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def models(self) -> list[dict[str, Any]]:
        """The models in the summary of an `embed`."""
        assert self.code == 0, self.err
        models: list[dict[str, Any]] = json.loads(self.out)["collections"][0]["models"]
        return models

    @property
    def retries(self) -> list[str]:
        """The log lines about tries that failed."""
        return [line for line in self.err.splitlines() if RETRY_LINE.search(line)]


@dataclasses.dataclass(frozen=True)
class Machine:
    """A computer with a cache of its own, chunks to embed, and a hub."""

    folder: Path
    hub: str

    @property
    def cache(self) -> Path:
        return self.folder / "home" / "hub"

    @property
    def chunks(self) -> Path:
        path = self.folder / "chunks" / "docs" / "a_chunks.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(TEXTS))
        return self.folder / "chunks"

    def start(
        self, *arguments: object, program: tuple[str, ...] = ("-m", "ultimate_embedder"), **variables: str
    ) -> Any:
        """Start the command line in a process of its own."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_ENDPOINT": self.hub, "HF_HOME": str(self.folder / "home"), **PATIENT, **variables}
        command = [sys.executable, *program, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: object, **options: Any) -> Result:
        """Run the command line to its end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=60)
        return Result(process.returncode, out, err)

    def pull(self, *options: object, **variables: str) -> Result:
        return self.run("models", "pull", KEY, *options, **variables)

    def embed(self, *options: object, models: str = KEY, **variables: str) -> Result:
        return self.run(*self.embedding(*options, models=models), **variables)

    def embedding(self, *options: object, models: str = KEY) -> list[str]:
        """The arguments that embed the chunks."""
        words = ["embed", self.chunks, "--output", self.folder / "out", "--models", models, *options]
        return [*map(str, words), "--export", "npy", "--json", "--quiet"]

    def snapshot(self, commit: str, hub_id: str = HUB_ID) -> Path:
        return self.cache / f"models--{hub_id.replace('/', '--')}" / "snapshots" / commit

    def vectors(self) -> np.ndarray:
        found: np.ndarray = np.load(self.folder / "out" / "docs" / "embeddings.npy")
        return found

    def with_cache_of(self, other: Machine) -> Machine:
        """This machine, after the cache of another one was copied to it."""
        shutil.copytree(other.cache, self.cache, symlinks=True)
        return self


RunHere = Callable[[Sequence[str]], Result]


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
def hub_here(hub: HubServer, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The hub of this process too."""
    use_hub_here(machine.hub, machine.folder, monkeypatch)
    return hub


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_model("xlm-roberta")


@pytest.fixture(scope="module")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The vectors of the model when it is loaded from its folder."""
    machine = Machine(tmp_path_factory.mktemp("reference"), dead())
    embed(machine.chunks, machine.folder / "out", models=[str(model)], exports=["npy"], quiet=True)
    return machine.vectors()


@pytest.fixture(scope="module")
def sharded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with its weights in several files."""
    folder = Path(shutil.copytree(model, tmp_path_factory.mktemp("sharded") / "model"))
    (folder / WEIGHTS).unlink()
    loaded: Any = transformers.AutoModel.from_pretrained(model)
    loaded.save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("model-*.safetensors"))) >= 3
    return folder


@dataclasses.dataclass(frozen=True)
class ColdRun:
    """The first run on a machine: everything had to come from the hub."""

    machine: Machine
    commit: str
    result: Result
    paths: list[str]


@pytest.fixture(scope="module")
def cold_files(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as many repositories have it: with its weights in other formats beside."""
    folder = Path(shutil.copytree(model, tmp_path_factory.mktemp("served") / "model"))
    for name in OTHER_FORMATS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"the same weights once more")
    return folder


@pytest.fixture(scope="module")
def cold(cold_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColdRun]:
    with HubServer() as hub:
        machine = Machine(tmp_path_factory.mktemp("cold"), hub.url)
        commit = hub.publish(HUB_ID, cold_files)
        result = machine.embed()
        yield ColdRun(machine, commit, result, [request.path for request in hub.requests])


@pytest.fixture(scope="module")
def pulled(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine that has the sharded model in its cache."""
    with HubServer() as hub:
        hub.publish(HUB_ID, sharded)
        machine = Machine(tmp_path_factory.mktemp("pulled"), hub.url)
        done = machine.pull()
        assert done.code == 0, done.err
    return machine


@pytest.fixture(scope="module")
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


def assert_same_vectors(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def assert_holds(snapshot: Path, model: Path) -> None:
    """Every file that loading the model needs is in the snapshot, byte for byte."""
    needed = [path for path in model.rglob("*") if path.is_file() and path.suffix != ".md"]
    wrong = [path for path in needed if path.read_bytes() != (snapshot / path.relative_to(model)).read_bytes()]
    assert not wrong


def moved(model: Path, folder: Path) -> Path:
    """A later version of a model, with other vectors."""
    shutil.copytree(model, folder)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace('"cls"', '"mean"'))
    assert pooling.read_bytes() != (model / "1_Pooling" / "config.json").read_bytes()
    return folder


# -- cold and warm


def test_a_cold_download_gives_the_vectors_of_the_folder(cold: ColdRun, reference: np.ndarray) -> None:
    (entry,) = cold.result.models
    assert (entry["model"], entry["hub_id"], entry["source"]) == (KEY, HUB_ID, "download")
    assert (entry["revision"], entry["retries"]) == (cold.commit, 0)
    assert Path(entry["path"]) == cold.machine.snapshot(cold.commit)
    assert entry["size_bytes"] >= (Path(entry["path"]) / WEIGHTS).stat().st_size
    assert entry["seconds"] > 0
    assert_same_vectors(cold.machine.vectors(), reference)


def test_only_the_needed_files_are_fetched(cold: ColdRun, model: Path) -> None:
    assert not [path for path in cold.paths if path.endswith(OTHER_FORMATS)]
    assert_holds(cold.machine.snapshot(cold.commit), model)


def test_a_part_of_the_model_that_has_no_safetensors_is_fetched_as_it_is(
    machine: Machine, hub: HubServer, model: Path, tmp_path: Path
) -> None:
    mixed = Path(shutil.copytree(model, tmp_path / "mixed"))
    (mixed / "2_Dense").mkdir()
    (mixed / "2_Dense" / "config.json").write_text("{}")
    (mixed / "2_Dense" / "pytorch_model.bin").write_bytes(b"weights that only this file has")
    commit = hub.publish(HUB_ID, mixed)
    done = machine.pull()
    assert done.code == 0, done.err
    assert (machine.snapshot(commit) / "2_Dense" / "pytorch_model.bin").is_file()


def test_the_manifest_names_the_commit_that_an_output_needs(cold: ColdRun) -> None:
    done = cold.machine.run("models", "manifest", cold.machine.folder / "out")
    assert done.code == 0, done.err
    (entry,) = json.loads(done.out)
    (used,) = cold.result.models
    for name in ("model", "hub_id", "revision", "digest"):
        assert entry[name] == used[name]


def test_the_list_shows_what_is_cached(cold: ColdRun) -> None:
    listed = {line.split()[0]: line for line in cold.machine.run("models", "list").out.splitlines()}
    assert "cached" in listed[KEY]
    assert cold.commit[:7] in listed[KEY]
    assert re.search(r"\d [kM]B", listed[KEY])
    assert "cached" not in listed[OTHER_KEY]
    assert cold.commit[:7] not in listed[OTHER_KEY]


def test_a_warm_start_asks_nothing_and_does_not_notice_a_moved_commit(
    cold: ColdRun, machine: Machine, hub: HubServer, model: Path, reference: np.ndarray, tmp_path: Path
) -> None:
    hub.publish(HUB_ID, moved(model, tmp_path / "moved"))
    (entry,) = machine.with_cache_of(cold.machine).embed().models
    assert hub.requests == []
    assert (entry["source"], entry["revision"], entry["retries"]) == ("cache", cold.commit, 0)
    assert_same_vectors(machine.vectors(), reference)


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("offline", ["", "--offline", "HF_HUB_OFFLINE"])
def test_a_warm_start_opens_no_socket_and_looks_up_no_name(
    cold: ColdRun,
    machine: Machine,
    run_here: RunHere,
    reference: np.ndarray,
    offline: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if offline == "HF_HUB_OFFLINE":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = ["--offline"] if offline == "--offline" else []
    (entry,) = run_here(machine.embedding(*options, "--cache-dir", cold.machine.cache)).models
    assert (entry["source"], entry["revision"]) == ("cache", cold.commit)
    assert_same_vectors(machine.vectors(), reference)


def test_a_dead_hub_does_not_disturb_a_warm_start(
    cold: ColdRun, tmp_path: Path, run_here: RunHere, reference: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, dead())
    use_hub_here(machine.hub, machine.folder, monkeypatch)
    (entry,) = run_here(machine.embedding("--cache-dir", cold.machine.cache)).models
    assert (entry["source"], entry["revision"], entry["retries"]) == ("cache", cold.commit, 0)
    assert_same_vectors(machine.vectors(), reference)


def test_a_pull_of_a_cached_model_asks_nothing(cold: ColdRun, machine: Machine, hub: HubServer) -> None:
    done = machine.with_cache_of(cold.machine).pull()
    assert done.code == 0, done.err
    assert hub.requests == []


def test_a_pull_goes_where_it_is_told(machine: Machine, hub: HubServer, model: Path) -> None:
    commit = hub.publish(HUB_ID, model)
    elsewhere = machine.folder / "elsewhere"
    assert machine.pull("--cache-dir", elsewhere).code == 0
    assert_holds(elsewhere / "models--BAAI--bge-m3" / "snapshots" / commit, model)
    assert not list(machine.cache.glob("models--*"))


# -- not there


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("offline", ["--offline", "HF_HUB_OFFLINE"])
def test_offline_every_missing_model_is_named_before_any_work(
    machine: Machine, run_here: RunHere, offline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if offline == "HF_HUB_OFFLINE":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = ["--offline"] if offline == "--offline" else []
    models = f"{KEY},{OTHER_KEY}"
    done = run_here(machine.embedding(*options, "--cache-dir", machine.cache, models=models))
    assert done.code == 1
    for words in (KEY, OTHER_KEY, str(machine.cache), f"ultimate-embedder models pull {KEY}"):
        assert words in done.err
    assert not (machine.folder / "out" / "docs").exists()


def test_a_pull_asks_nothing_when_the_variables_say_offline(machine: Machine, hub: HubServer, model: Path) -> None:
    hub.publish(HUB_ID, model)
    done = machine.pull(HF_HUB_OFFLINE="1")
    assert done.code == 1
    for words in (KEY, str(machine.cache)):
        assert words in done.err
    assert hub.requests == []


def test_a_missing_companion_can_be_gone_without(
    cold: ColdRun, machine: Machine, run_here: RunHere, reference: np.ndarray
) -> None:
    options = ["--offline", "--allow-missing-companions", "--cache-dir", cold.machine.cache]
    done = run_here(machine.embedding(*options, models=f"{KEY}=1,{OTHER_KEY}=3"))
    (entry,) = done.models
    assert (entry["model"], entry["weight"]) == (KEY, 1.0)
    summary = json.loads(done.out)
    assert OTHER_KEY in " ".join(summary["warnings"] + summary["collections"][0]["warnings"])
    assert_same_vectors(machine.vectors(), reference)


def test_a_dead_hub_and_a_cold_cache_end_in_a_clear_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path, dead())
    started = time.monotonic()
    done = machine.embed(**IMPATIENT)
    assert time.monotonic() - started < 20
    assert done.code == 1
    for words in (KEY, machine.hub):
        assert words in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out" / "docs").exists()


def test_a_model_that_the_hub_does_not_have_is_not_asked_for_again(machine: Machine, hub: HubServer) -> None:
    done = machine.pull()
    assert done.code == 1
    assert HUB_ID in done.err
    assert (done.retries, "Traceback" in done.err) == ([], False)
    assert len(hub.asked(HUB_ID)) == 1


def test_a_pinned_commit_that_the_hub_does_not_have_is_not_asked_for_again(
    machine: Machine, hub: HubServer, model: Path
) -> None:
    hub.publish(HUB_ID, model)
    done = machine.run("0" * 40, "models", "pull", KEY, program=("-c", PINNED))
    assert done.code == 1
    for words in (KEY, "0" * 40):
        assert words in done.err
    assert (done.retries, "Traceback" in done.err) == ([], False)


def test_a_pinned_commit_is_fetched_though_the_hub_moved_on(
    machine: Machine, hub: HubServer, model: Path, tmp_path: Path
) -> None:
    commit = hub.publish(HUB_ID, model)
    newest = hub.publish(HUB_ID, moved(model, tmp_path / "moved"))
    done = machine.run(commit, "models", "pull", KEY, program=("-c", PINNED))
    assert done.code == 0, done.err
    assert_holds(machine.snapshot(commit), model)
    assert not machine.snapshot(newest).exists()


# -- faults


FAULTS = {
    "500 of the api": (Fault("GET /api/models", status=500, times=2), "500"),
    "500 of a file": (Fault(GET_WEIGHTS, status=500, times=2), "500"),
    "503 of a look-up": (Fault(r"/resolve/.*/tokenizer\.json", status=503), "503"),
    "hang": (Fault(GET_WEIGHTS, delay_s=30), "ime"),
    "drop": (Fault(GET_WEIGHTS, drop=True), ""),
    "truncation": (Fault(GET_WEIGHTS, truncate=400_000), ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pull_recovers(machine: Machine, hub: HubServer, model: Path, fault: str) -> None:
    commit = hub.publish(HUB_ID, model)
    expected, reason = FAULTS[fault]
    hub.faults = [injected := dataclasses.replace(expected)]
    done = machine.pull(**SHORT_TIMEOUTS if fault == "hang" else {})
    assert done.code == 0, done.err
    assert injected.times == 0
    assert_holds(machine.snapshot(commit), model)
    assert len(done.retries) >= expected.times, done.err
    assert all(reason in line for line in done.retries)


def test_retry_after_is_honoured(machine: Machine, hub: HubServer, model: Path) -> None:
    hub.publish(HUB_ID, model)
    hub.faults = [Fault(GET_WEIGHTS, status=429, retry_after="1")]
    done = machine.pull()
    assert done.code == 0, done.err
    refused, again = hub.asked(GET_WEIGHTS)
    assert (refused.status, again.status) == (429, 200)
    assert 1 <= again.at_s - refused.at_s < 4
    assert ["429" in line for line in done.retries] == [True], done.err


@pytest.mark.parametrize(("client", "then"), [("installed", ""), ("installed", "503"), (OLD_CLIENT, "")])
def test_a_large_file_that_was_cut_is_resumed(
    machine: Machine, hub: HubServer, large: Path, client: str, then: str, request: pytest.FixtureRequest
) -> None:
    commit = hub.publish(HUB_ID, large)
    hub.faults = [Fault(GET_WEIGHTS, truncate=24 << 20)] + ([Fault(GET_WEIGHTS, status=503)] if then else [])
    done = machine.pull(**{} if client == "installed" else {"PYTHONPATH": request.getfixturevalue("old_client")})
    assert done.code == 0, done.err
    assert_holds(machine.snapshot(commit), large)
    last = hub.asked(GET_WEIGHTS)[-1]
    # the hub client writes blocks of 10 MiB: what was not written yet may be lost
    assert (last.status, last.range) in ((206, f"bytes={20 << 20}-"), (206, f"bytes={24 << 20}-"))


def every_fault() -> list[Fault]:
    """One of each kind, each on a file of its own."""
    return [
        Fault("GET /api/models", status=500),
        Fault(r"GET .*/resolve/.*/tokenizer\.json", status=503),
        Fault(r"GET .*/resolve/.*/modules\.json", status=429, retry_after="1"),
        Fault(r"GET .*/resolve/.*/1_Pooling/config\.json", drop=True),
        Fault(r"GET .*/resolve/.*/tokenizer_config\.json", truncate=100, delay_s=30),
        Fault(GET_WEIGHTS, truncate=400_000),
    ]


def test_a_run_through_every_fault_gives_equal_vectors(
    machine: Machine, hub_here: HubServer, run_here: RunHere, model: Path, reference: np.ndarray
) -> None:
    commit = hub_here.publish(HUB_ID, model)
    hub_here.faults = every_fault()
    (entry,) = run_here(machine.embedding("--cache-dir", machine.cache)).models
    assert not [fault for fault in hub_here.faults if fault.times]
    assert (entry["source"], entry["revision"]) == ("download", commit)
    assert_same_vectors(machine.vectors(), reference)
    assert entry["retries"] >= len(hub_here.faults)


def test_the_client_of_kaggle_recovers_from_every_fault(
    machine: Machine, hub: HubServer, model: Path, old_client: str
) -> None:
    commit = hub.publish(HUB_ID, model)
    hub.faults = every_fault()
    done = machine.pull(**SHORT_TIMEOUTS, PYTHONPATH=old_client)
    assert done.code == 0, done.err
    assert not [fault for fault in hub.faults if fault.times]
    assert_holds(machine.snapshot(commit), model)
    assert len(done.retries) >= len(hub.faults), done.err


@pytest.mark.parametrize("where", ["GET /api/models", GET_WEIGHTS])
def test_a_hub_that_never_recovers_ends_in_a_clear_error(
    machine: Machine, hub: HubServer, model: Path, where: str
) -> None:
    hub.publish(HUB_ID, model)
    hub.faults = [Fault(where, status=500, times=1000)]
    started = time.monotonic()
    done = machine.pull(**IMPATIENT)
    assert time.monotonic() - started < 10
    assert (done.code, "Traceback" in done.err) == (1, False)
    assert done.retries
    last = done.err.splitlines()[-1]
    for words in (KEY, hub.url, "500"):
        assert words in last


# -- moved on


def test_a_refresh_notices_a_moved_commit(
    cold: ColdRun, machine: Machine, hub_here: HubServer, run_here: RunHere, model: Path, reference: np.ndarray
) -> None:
    commit = hub_here.publish(HUB_ID, moved(model, machine.folder / "moved"))
    machine.with_cache_of(cold.machine)
    (entry,) = run_here(machine.embedding("--refresh-cache", "--cache-dir", machine.cache)).models
    assert (entry["source"], entry["revision"]) == ("refresh", commit)
    for old_or_new in (cold.commit[:7], commit[:7]):
        assert old_or_new in entry["note"]
    assert np.abs(machine.vectors() - reference).max() > 0.01
    assert hub_here.asked(GET_WEIGHTS) == []  # the weights are the same, and are here


def test_a_refresh_says_that_nothing_changed(
    cold: ColdRun, machine: Machine, hub_here: HubServer, run_here: RunHere, cold_files: Path
) -> None:
    commit = hub_here.publish(HUB_ID, cold_files)
    machine.with_cache_of(cold.machine)
    (entry,) = run_here(machine.embedding("--refresh-cache", "--cache-dir", machine.cache)).models
    assert (entry["source"], entry["revision"], commit) == ("refresh", cold.commit, cold.commit)
    assert "unchanged" in entry["note"]
    assert hub_here.asked("resolve") == []


def test_a_pull_says_whether_a_refresh_found_a_newer_commit(
    pulled: Machine, machine: Machine, hub: HubServer, sharded: Path
) -> None:
    commit = hub.publish(HUB_ID, sharded)
    done = machine.with_cache_of(pulled).pull("--refresh-cache")
    assert done.code == 0, done.err
    assert commit in done.out
    assert "unchanged" in done.out + done.err


# -- interrupted and damaged


def test_an_interrupted_download_is_no_cached_model(
    machine: Machine, run_here: RunHere, hub: HubServer, model: Path
) -> None:
    commit = hub.publish(HUB_ID, model)
    hub.faults = [Fault(GET_WEIGHTS, truncate=400_000, delay_s=60)]
    killed = machine.start("models", "pull", KEY)
    deadline = time.monotonic() + 20
    while not hub.asked(GET_WEIGHTS) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    killed.kill()
    killed.communicate()

    offline = run_here(machine.embedding("--offline", "--cache-dir", machine.cache))
    assert offline.code == 1
    for words in (KEY, WEIGHTS, "ultimate-embedder models pull"):
        assert words in offline.err
    assert not (machine.folder / "out" / "docs").exists()
    assert machine.run("models", "verify", KEY).code == 1

    online = machine.pull()
    assert online.code == 0, online.err
    assert_holds(machine.snapshot(commit), model)


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_shard_is_found_out_and_fetched_again(
    pulled: Machine, machine: Machine, run_here: RunHere, hub: HubServer, sharded: Path, damage: str
) -> None:
    commit = hub.publish(HUB_ID, sharded)
    shard = sorted(machine.with_cache_of(pulled).snapshot(commit).glob("model-*.safetensors"))[1]
    blob = shard.resolve()
    if damage == "missing":
        blob.unlink()
        shard.unlink(missing_ok=True)
    else:
        os.truncate(blob, blob.stat().st_size - 1000)

    offline = run_here(machine.embedding("--offline", "--cache-dir", machine.cache))
    assert offline.code == 1
    for words in (KEY, shard.name):
        assert words in offline.err
    assert hub.requests == []
    assert not (machine.folder / "out" / "docs").exists()

    online = machine.pull()
    assert online.code == 0, online.err
    assert_holds(machine.snapshot(commit), sharded)
    assert {Path(request.path).name for request in hub.asked("GET .*/resolve/")} == {shard.name}


def test_verify_is_content_with_a_whole_model(pulled: Machine) -> None:
    done = pulled.run("models", "verify")
    assert (done.code, KEY in done.out) == (0, True)


@pytest.mark.parametrize("name", ["model-00002-*.safetensors", "tokenizer.json"])
def test_verify_finds_a_flipped_byte(pulled: Machine, machine: Machine, name: str) -> None:
    (file,) = machine.with_cache_of(pulled).cache.glob(f"models--BAAI--bge-m3/snapshots/*/{name}")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.resolve().write_bytes(content)
    done = machine.run("models", "verify", KEY)
    assert done.code == 1
    assert file.name in done.out + done.err
    for whole in ("config.json", "model-00001"):
        assert whole not in (done.out + done.err).replace("tokenizer_config.json", "")


def test_verify_of_a_model_that_is_not_there_fails(machine: Machine, hub: HubServer) -> None:
    done = machine.run("models", "verify", KEY)
    assert (done.code, KEY in done.out + done.err) == (1, True)
    assert hub.requests == []


def test_two_pulls_at_once_do_not_get_in_each_others_way(machine: Machine, hub: HubServer, model: Path) -> None:
    commit = hub.publish(HUB_ID, model)
    hub.faults = [Fault(GET_WEIGHTS, delay_s=0.5, times=2)]
    both = [machine.start("models", "pull", KEY) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert_holds(machine.snapshot(commit), model)
    assert machine.run("models", "verify", KEY).code == 0


# -- code of the model's own


@pytest.fixture(scope="module")
def with_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that only its own code can load."""
    folder = Path(shutil.copytree(tiny_model("bert"), tmp_path_factory.mktemp("code") / "model"))
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": own}))
    (folder / "configuration_own.py").write_text(
        "from transformers import BertConfig\n\n\nclass OwnConfig(BertConfig):\n    model_type = 'own'\n"
    )
    (folder / "modeling_own.py").write_text(
        "from transformers import BertModel\n\nfrom .configuration_own import OwnConfig\n\n\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    return folder


@pytest.mark.usefixtures("no_sockets")
def test_code_of_the_model_is_refused_unless_it_is_allowed(machine: Machine, run_here: RunHere) -> None:
    done = run_here(machine.embedding("--cache-dir", machine.cache, models=CODE_KEY))
    assert done.code == 1
    for words in (CODE_KEY, f"--trust-remote-code {CODE_KEY}"):
        assert words in done.err
    assert not (machine.folder / "out" / "docs").exists()


def test_code_that_is_allowed_is_pulled_and_comes_from_the_cache(
    machine: Machine, hub_here: HubServer, run_here: RunHere, with_code: Path
) -> None:
    commit = hub_here.publish(CODE_HUB_ID, with_code)
    trust = ("--trust-remote-code", CODE_KEY)
    pulled = machine.run("models", "pull", CODE_KEY, *trust)
    assert pulled.code == 0, pulled.err
    assert_holds(machine.snapshot(commit, CODE_HUB_ID), with_code)
    hub_here.requests.clear()
    (entry,) = run_here(machine.embedding(*trust, "--cache-dir", machine.cache, models=CODE_KEY)).models
    assert (entry["source"], entry["revision"]) == ("cache", commit)
    assert hub_here.requests == []
    assert machine.vectors().shape == (len(TEXTS), 64)
