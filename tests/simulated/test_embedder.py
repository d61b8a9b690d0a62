"""The V4 class on simulated devices: which of them work, and what it says about their memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.conftest import WriteChunks
from tests.support.all_devices import make_all_work
from tests.support.tiny_models import tiny_model
from ultimate_embedder.compat import EnsembleConfig, KaggleExportConfig, UltimateKaggleEmbedderV4


@pytest.fixture
def chunks(write_chunks: WriteChunks, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "simulated:2x15GiB")
    return write_chunks([f"text number {number}" for number in range(256)])


def embedder(tmp_path: Path, **ensemble: Any) -> UltimateKaggleEmbedderV4:
    models = [str(tiny_model(architecture, hidden=32, layers=1)) for architecture in ("bert", "mpnet")]
    return UltimateKaggleEmbedderV4(
        models[0],
        export_config=KaggleExportConfig(working_dir=str(tmp_path)),
        enable_ensemble=True,
        ensemble_config=EnsembleConfig(ensemble_models=models, sequential_passes=True, **ensemble),
    )


@pytest.mark.parametrize(
    ("data_parallel", "count", "placement"),
    [
        (True, 2, "2 copies, on simulated:0 and simulated:1"),
        pytest.param(
            "nn.DataParallel",
            2,
            "nn.DataParallel over simulated:0+simulated:1",
            marks=pytest.mark.skipif(
                transformers.__version__.startswith("5.0."), reason="its MPNet cannot be replicated by nn.DataParallel"
            ),
        ),
        (False, 1, "1 copy, on simulated:0"),
    ],
)
def test_gpus_are_counted_that_worked(
    chunks: Path,
    tmp_path: Path,
    data_parallel: bool | str,
    count: int,
    placement: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Specified: "optionally wrapping the active model in `torch.nn.DataParallel` to exploit both T4s"."""
    if data_parallel is True:
        make_all_work(2, monkeypatch)
    made = embedder(tmp_path, sequential_data_parallel=data_parallel)
    made.load_chunks_from_processing(chunks)
    assert made.generate_embeddings_kaggle_optimized()["gpu_count"] == count
    assert made._summary is not None
    (docs,) = made._summary.collections
    assert [each.devices for each in docs.passes] == [["simulated:0", "simulated:1"][:count]] * 2
    assert {each.placement for each in docs.leases if each.event_type == "release"} == {placement}


def test_the_memory_of_each_gpu_is_probed(chunks: Path, tmp_path: Path) -> None:
    """Specified: "exposes a low-memory threshold tied to a 12GB ceiling on GPU 0" (`_collect_gpu_snapshots`)."""
    first, second = embedder(tmp_path)._collect_gpu_snapshots().values()
    total = 15 * 1.073741824
    assert (first["device"], second["device"]) == ("simulated:0", "simulated:1")
    for now in (first, second):
        assert now["total_gb"] == now["free_gb"] == pytest.approx(total)
        assert (now["allocated_gb"], now["reserved_gb"], now["low_memory"]) == (0, 0, False)
    assert (first["ceiling_gb"], first["low_memory_threshold_gb"]) == (12, pytest.approx(total - 12))


def test_memory_is_low_when_less_is_free_than_the_ceiling_leaves(
    chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specified: "when free space drops below the configurable threshold tied to a 12GB ceiling on GPU 0"."""
    made = embedder(tmp_path)
    device = made._session.devices[0]
    now = dataclasses.replace(device.snapshot(), free_bytes=4_000_000_000)
    monkeypatch.setattr(device, "snapshot", lambda: now)
    assert [each["low_memory"] for each in made._collect_gpu_snapshots().values()] == [True, False]
