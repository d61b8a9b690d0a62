"""The page about runs on simulated devices."""

from __future__ import annotations

from pathlib import Path

from tests.report.html.conftest import Page
from tests.simulated.test_runs import write_texts
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
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
