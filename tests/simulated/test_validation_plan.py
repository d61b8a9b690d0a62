"""The validation plan of exclusive mode for two T4s, scenario by scenario, on two simulated ones.

`make gpu-check` runs it on real ones. The snippets are those of the plan, as notebooks have them. The models are
stand-ins of the same architectures, served by a local hub under the names that the plan uses; only the folder `/kaggle`
is elsewhere.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import SHARED
from tests.support.cards import DEVICES, SIMULATED
from tests.support.hub_server import HubServer
from tests.support.slow import slow
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.execution import windows

ROOT = Path(__file__).resolve().parents[2]
PLAN = SHARED / "seeds" / "003_912b691f98a9b3f5.txt"
TEXT_CHARACTERS = 64
CHUNKS = 192
MANY_CHUNKS = 400  # enough that batches end where memory does

ACTIVATION = """
from processor.ultimate_embedder.config import EnsembleConfig, KaggleGPUConfig
from processor.ultimate_embedder.core import UltimateKaggleEmbedderV4

ensemble_config = EnsembleConfig(
    ensemble_models=["jina-code-embeddings-1.5b", "bge-m3"],
    sequential_passes=True,
    exclusive_mode=True,
)

embedder = UltimateKaggleEmbedderV4(
    model_name="jina-code-embeddings-1.5b",
    enable_ensemble=True,
    ensemble_config=ensemble_config,
)

# Check that models are staged on CPU
for model_name, model in embedder.models.items():
    device = next(model.parameters()).device if hasattr(model, 'parameters') else 'unknown'
    print(f"{model_name}: {device}")
"""

LEASES = """
# Load small test collection
embedder.load_chunks_from_processing(chunks_dir="/kaggle/input/test-chunks/")

# Run exclusive ensemble
results = embedder.generate_embeddings_kaggle_optimized()

# Check lease events
lease_events = embedder.telemetry.gpu_lease_events
print(f"Total lease events: {len(lease_events)}")

for event in lease_events:
    print(f"{event['event_type']}: {event['model']} on devices {event['device_ids']}")
    if 'vram' in event:
        for dev_id, vram in event['vram'].items():
            print(f"  GPU {dev_id}: {vram.get('allocated_gb', 0):.2f} GB allocated")
"""

RELEASE = """
import torch

# Run with monitoring
embedder.load_chunks_from_processing(chunks_dir="/kaggle/input/test-chunks/")

# Manually check VRAM before run
print("Before run:")
for i in range(torch.cuda.device_count()):
    allocated = torch.cuda.memory_allocated(i) / 1e9
    print(f"  GPU {i}: {allocated:.2f} GB allocated")

results = embedder.generate_embeddings_kaggle_optimized()

# Check VRAM deltas in telemetry
for event in embedder.telemetry.gpu_lease_events:
    if event['event_type'] == 'release':
        print(f"\\n{event['model']} release:")
        for dev_id, vram in event['vram'].items():
            print(f"  GPU {dev_id}: {vram.get('allocated_gb', 0):.2f} GB allocated")
"""

BATCHES = """
# Standard sequential mode
embedder_standard = UltimateKaggleEmbedderV4(
    model_name="jina-code-embeddings-1.5b",
    enable_ensemble=True,
    ensemble_config=EnsembleConfig(
        ensemble_models=["jina-code-embeddings-1.5b", "bge-m3"],
        sequential_passes=True,
        exclusive_mode=False,  # Standard mode
    ),
)

embedder_standard.load_chunks_from_processing(chunks_dir="/kaggle/input/test-chunks/")
results_standard = embedder_standard.generate_embeddings_kaggle_optimized()

# Exclusive mode
embedder_exclusive = UltimateKaggleEmbedderV4(
    model_name="jina-code-embeddings-1.5b",
    enable_ensemble=True,
    ensemble_config=EnsembleConfig(
        ensemble_models=["jina-code-embeddings-1.5b", "bge-m3"],
        sequential_passes=True,
        exclusive_mode=True,  # Exclusive mode
    ),
)

embedder_exclusive.load_chunks_from_processing(chunks_dir="/kaggle/input/test-chunks/")
results_exclusive = embedder_exclusive.generate_embeddings_kaggle_optimized()

# Compare batch sizes
print(f"Standard batch size: {results_standard.get('optimal_batch_size', 'N/A')}")
print(f"Exclusive batch size: {results_exclusive.get('optimal_batch_size', 'N/A')}")
"""

PARITY = """
import numpy as np

# Run both modes on same data
embedder_standard.load_chunks_from_processing(chunks_dir="/kaggle/input/test-chunks/")
results_standard = embedder_standard.generate_embeddings_kaggle_optimized()
embeddings_standard = embedder_standard.embeddings

embedder_exclusive.load_chunks_from_processing(chunks_dir="/kaggle/input/test-chunks/")
results_exclusive = embedder_exclusive.generate_embeddings_kaggle_optimized()
embeddings_exclusive = embedder_exclusive.embeddings

# Compare
similarity = np.dot(embeddings_standard.flatten(), embeddings_exclusive.flatten())
similarity /= (np.linalg.norm(embeddings_standard.flatten()) * np.linalg.norm(embeddings_exclusive.flatten()))

print(f"Cosine similarity: {similarity:.6f}")
print(f"Max absolute difference: {np.max(np.abs(embeddings_standard - embeddings_exclusive)):.10f}")
"""

COMMAND = """
!python scripts/embed_collections_v5.py \\
    --chunks-root /kaggle/input/test-chunks \\
    --output-root /kaggle/working/embeddings \\
    --model jina-code-embeddings-1.5b \\
    --enable-ensemble \\
    --ensemble-mode sequential \\
    --exclusive-ensemble \\
    --collections test_collection
"""


class Notebook:
    """Runs cells one after the other, as Kaggle would, in a folder that stands for its disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {}

    def run(self, cell: str) -> None:
        exec(compile(self._moved(cell), "<cell>", "exec"), self.names)

    def shell(self, cell: str) -> subprocess.CompletedProcess[str]:
        words = self._moved(cell).replace("\\\n", " ").strip().removeprefix("!").split()
        assert words[0] == "python"
        return subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)

    def _moved(self, cell: str) -> str:
        return cell.replace("/kaggle/", f"{self.folder}/kaggle/")

    def __getattr__(self, name: str) -> Any:
        return self.names[name]


def write_chunks(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    texts = [f"def f{number}(): return {number * 7919}".ljust(TEXT_CHARACTERS, "#") for number in range(count)]
    records = [{"text": text, "metadata": {"chunk_id": f"c{number}"}} for number, text in enumerate(texts)]
    (folder / "code_chunks.json").write_text(json.dumps(records))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A machine with a hub, two T4s and a small collection of texts of one length."""
    folder = tmp_path_factory.mktemp("disk")
    write_chunks(folder / "kaggle" / "input" / "test-chunks" / "test_collection", CHUNKS)
    with HubServer() as hub, pytest.MonkeyPatch.context() as patch:
        hub.publish("jinaai/jina-code-embeddings-1.5b", tiny_model("qwen2", hidden=256, layers=2))
        hub.publish("BAAI/bge-m3", tiny_model("xlm-roberta", hidden=128, layers=2))
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HOME", str(folder / "hf"))
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        patch.setenv("ULTIMATE_EMBEDDER_DEVICES", DEVICES)
        patch.syspath_prepend(str(ROOT))
        patch.chdir(folder)
        yield folder


@pytest.fixture(autouse=True)
def no_network(disk: Path) -> None:
    """Overrides the suite's ban on the hub: here it is a local one."""


@pytest.fixture(scope="module")
def notebook(disk: Path) -> Notebook:
    """A notebook in which the first two scenarios have been run."""
    made = Notebook(disk)
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ultimate_embedder")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    made.names["log"] = records
    made.run(ACTIVATION)
    made.names["devices_at_first"] = [str(next(model.parameters()).device) for model in made.embedder.models.values()]
    made.run(LEASES)
    logger.removeHandler(handler)
    return made


@pytest.fixture(scope="module")
def compared(notebook: Notebook) -> Notebook:
    """The same notebook, after the scenarios that compare the modes."""
    notebook.run(BATCHES)
    notebook.run(PARITY)
    return notebook


def gigabytes(events: list[dict[str, Any]], kind: str) -> list[dict[int, float]]:
    return [
        {device: vram["allocated_gb"] for device, vram in event["vram"].items()}
        for event in events
        if event["event_type"] == kind
    ]


@pytest.mark.skipif(not PLAN.exists(), reason="needs the plan, which is not part of the project")
@pytest.mark.parametrize("snippet", [ACTIVATION, LEASES, RELEASE, BATCHES, PARITY, COMMAND])
def test_the_snippets_are_those_of_the_plan(snippet: str) -> None:
    assert snippet.strip() in PLAN.read_text("utf-8")


def test_1_models_are_staged_on_the_cpu_and_the_log_says_so(notebook: Notebook) -> None:
    assert list(notebook.embedder.models) == ["jina-code-embeddings-1.5b", "bge-m3"]
    assert notebook.devices_at_first == ["cpu", "cpu"]
    assert "Exclusive ensemble mode: staging primary model to CPU" in notebook.log


def test_2_two_leases_are_acquired_and_released_over_both_devices_with_their_memory(notebook: Notebook) -> None:
    events = notebook.lease_events
    assert [event["event_type"] for event in events] == ["acquire", "release", "acquire", "release"]
    assert [event["model"] for event in events] == ["jina-code-embeddings-1.5b"] * 2 + ["bge-m3"] * 2
    assert all(event["device_ids"] == [0, 1] for event in events)
    for event in events:
        assert set(event["vram"]) == {0, 1}
        assert all(
            set(each) == {"allocated_gb", "reserved_gb", "free_gb", "total_gb"} for each in event["vram"].values()
        )
        if SIMULATED:
            assert all(each["total_gb"] == pytest.approx(15 * 1.073741824) for each in event["vram"].values())
    assert notebook.results["lease_events"] == events
    assert any(line.startswith("Exclusive ensemble mode detected") for line in notebook.log)


def test_2_the_memory_was_really_used_meanwhile(notebook: Notebook) -> None:
    passes = json.loads((notebook.embedder.output_folder / "summary.json").read_text())["collections"][0]["passes"]
    for each in passes:
        assert each["peak_memory_bytes"] > 500_000
        assert len(each["tokens_by_device"]) == 2


def test_3_memory_is_back_between_the_passes(notebook: Notebook) -> None:
    notebook.run(RELEASE)
    events = notebook.embedder.telemetry.gpu_lease_events
    assert len(events) == 8
    assert gigabytes(events, "release") == gigabytes(events, "acquire") == [{0: 0.0, 1: 0.0}] * 4


def test_4_batches_are_at_least_as_large_as_in_sequential_mode_and_none_runs_out_of_memory(compared: Notebook) -> None:
    standard, exclusive = compared.results_standard, compared.results_exclusive
    assert (standard["ensemble_mode"], exclusive["ensemble_mode"]) == ("sequential", "exclusive")
    assert standard.keys() == exclusive.keys()
    assert exclusive["optimal_batch_size"] >= standard["optimal_batch_size"] > 0
    assert not [event for event in exclusive["mitigation_events"] if "oom" in event["type"]]


@pytest.mark.skipif(not SIMULATED, reason="needs cards that are too small")
@pytest.mark.parametrize("data_parallel", [slow("nn.DataParallel"), slow(False)])
def test_4_batches_are_larger_when_memory_is_what_limits_them(
    disk: Path, tmp_path: Path, data_parallel: str | bool
) -> None:
    """DataParallel splits evenly, so the smaller device decides; alone, a device has only its own memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ULTIMATE_EMBEDDER_DEVICES", "simulated:16MiB+24MiB")
        patch.setattr(windows, "FIRST_WINDOWS", ())
        patch.setattr("ultimate_embedder.batching.plan.WINDOW_BATCHES", 1)  # batches that only memory makes smaller
        write_chunks(tmp_path / "kaggle" / "input" / "test-chunks" / "many", MANY_CHUNKS)
        notebook = Notebook(tmp_path)
        standard = f"exclusive_mode=False, sequential_data_parallel={data_parallel!r},"
        notebook.run(ACTIVATION)
        notebook.run(BATCHES.replace("exclusive_mode=False,", standard))
    batches = {
        name: notebook.names[f"results_{name}"]["optimal_batch_sizes"]["bge-m3"] for name in ("standard", "exclusive")
    }
    assert batches["exclusive"] > batches["standard"]


def test_5_both_modes_give_the_same_vectors_at_default_precision(compared: Notebook) -> None:
    """Specified: "Cosine similarity should be >= 0.9999"; "Max absolute difference should be < 1e-5"."""
    assert compared.results_standard["precision"] == compared.results_exclusive["precision"] == "fp16"
    assert compared.similarity >= 0.9999
    assert np.max(np.abs(compared.embeddings_standard - compared.embeddings_exclusive)) < 1e-5


@pytest.mark.slow
def test_5_full_precision_agrees_to_five_digits(disk: Path) -> None:
    notebook = Notebook(disk)
    full = "    gpu_config=KaggleGPUConfig(precision='fp32'),\n    enable_ensemble=True,\n"
    notebook.run(ACTIVATION)
    notebook.run(BATCHES.replace("    enable_ensemble=True,\n", full))
    notebook.run(PARITY)
    assert notebook.results_exclusive["precision"] == "fp32"
    assert notebook.similarity >= 0.9999
    assert np.abs(notebook.embeddings_standard - notebook.embeddings_exclusive).max() < 1e-5


def test_6_the_flag_works_from_end_to_end(disk: Path) -> None:
    done = Notebook(disk).shell(COMMAND)
    assert done.returncode == 0, done.stderr
    assert "Exclusive ensemble mode detected" in done.stderr
    output = disk / "kaggle" / "working" / "embeddings"
    assert '"ensemble_mode": "exclusive"' in (output / "embedding_summary.json").read_text()
    stats = json.loads((output / "test_collection" / "processing_stats.json").read_text())
    assert [event["event_type"] for event in stats["lease_events"]] == ["acquire", "release"] * 2
    assert all(event["device_ids"] == [0, 1] for event in stats["lease_events"])


@pytest.mark.parametrize(
    ("mode", "parallelism"),
    [
        *(("sequential", "data-parallel"), ("exclusive", "replicas")),
        *(slow("sequential", "replicas"), slow("exclusive", "data-parallel")),
    ],
)
def test_wrappers_are_built_anew_for_each_lease_and_leave_nothing(
    disk: Path, tmp_path: Path, mode: str, parallelism: str
) -> None:
    summary = embed(
        disk / "kaggle" / "input" / "test-chunks",
        tmp_path,
        models=["jina-code-embeddings-1.5b", "bge-m3"],
        fusion="weighted_average",
        mode=mode,
        parallelism=parallelism,
        precision="fp32",
        exports="npy",
        quiet=True,
    )
    released = [lease for lease in summary.collections[0].leases if lease.event_type == "release"]
    first, second = released[0].devices
    wrapped = f"nn.DataParallel over {first}+{second}"
    expected = wrapped if parallelism == "data-parallel" else f"2 copies, on {first} and {second}"
    assert [lease.placement for lease in released] == [expected] * 2
    assert [lease.leftovers for lease in released] == [[], []]
