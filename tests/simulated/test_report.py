"""The page about runs on simulated devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.html.conftest import Page
from tests.simulated.test_runs import write_texts
from tests.support.replayed import assert_replays
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.report import condense, quota
from ultimate_embedder.report.html.curves import read_curves


def test_every_device_has_a_lane_with_leases_and_memory_below_its_ceiling(tmp_path: Path) -> None:
    chunks = write_texts(tmp_path, [f"text number {number} " * (1 + number % 9) for number in range(120)])
    models = [str(tiny_model("bert")), str(tiny_model("mpnet"))]
    out = tmp_path / "out"
    summary = embed(
        chunks, out, models=models, mode="exclusive", devices="simulated:2x64MiB", exports="npy", quiet=True
    )
    events = read_curves(out / "events.jsonl")
    assert events is not None
    passes = summary.collections[0].passes
    assert {model: pace.tokens for model, pace in events.paces.items()} == {each.model: each.tokens for each in passes}
    assert {model: pace.batches for model, pace in events.paces.items()} == {
        each.model: each.batches for each in passes
    }
    for device in ("simulated:0", "simulated:1"):
        lane = events.lanes[device]
        assert set(lane.leases) == set(lane.passes) == {each.model for each in passes}
        assert 0 < max(lane.held_bytes.values()) <= max(lane.ceiling_bytes.values()) < 64 << 20
    words = Page((out / "report.html").read_text("utf-8")).words
    assert "Completed" in words
    assert "simulated:1" in words
    assert "exceeded its memory ceiling" not in words


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run on a device that is too small, whose log has next to nothing event by event."""
    root = tmp_path_factory.mktemp("pressed")
    chunks = write_texts(root, [f"text number {number} " * (1 + number % 30) for number in range(48)])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_BATCHES", "SPECIAL_BATCHES", "FEW_BATCHES"):
            patch.setattr(condense, name, 2)
        patch.setattr(quota, "MOST_MITIGATIONS", 3)
        embed(
            chunks,
            root / "out",
            models=[str(tiny_model("qwen3", hidden=128, layers=4))],
            devices="simulated:5MiB",
            precision="fp32",
            batch_rows=4,
            exports="npy",
            quiet=True,
        )
    return root / "out"


def test_the_log_of_a_run_under_pressure_gives_its_summary(pressed: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quota, "MOST_MITIGATIONS", 3)
        summary = assert_replays(pressed)
    found = summary.collections[0].mitigations
    assert len(found) < 10 < sum(each.times for each in found)
    assert all(each.details["reason"] for each in found)
    [device] = summary.devices
    assert device.ceiling_reason == "8% below its total (--safety-margin)"
    assert 0 < device.peak_bytes <= device.ceiling_bytes < device.total_bytes
    assert summary.collections[0].passes[0].lease_ids == [each.lease_id for each in summary.collections[0].leases[:1]]
    assert summary.collections[0].leases[0].memory_placed
