"""A plan against real runs on simulated cards: tokens exact, peaks within a tenth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary, embed, plan
from ultimate_embedder.devices.simulated import SimulatedControls

WORDS = ("memory", "of", "a", "device", "is", "measured", "before", "and", "after", "every", "batch", ",")
TEXTS = [" ".join(WORDS[(n + k) % len(WORDS)] for k in range(n % 12 + 1)) + f" {n}" for n in range(96)]
WITHIN = 0.1


def compared(summary: RunSummary) -> dict[tuple[str, str | None], tuple[float, float]]:
    assert summary.plan is not None
    assert summary.plan.same_work, summary.plan.why
    assert summary.plan.same_devices, summary.plan.why
    return {(each.what, each.device or each.model): (each.planned, each.actual) for each in summary.plan.figures}


def plan_and_run(chunks: Path, output: Path, **options: Any) -> RunSummary:
    options = {"exports": "none", "quiet": True, **options}
    made = plan(chunks, output, **options)
    assert made.fits, made.problems
    return embed(chunks, output, **options)


def assert_peaks(found: dict[tuple[str, str | None], tuple[float, float]], cards: int) -> None:
    peaks = {device: values for (what, device), values in found.items() if what == "peak memory allocated"}
    assert len(peaks) == cards
    # a card may get only smaller batches: the one with the largest is where the prediction must hold
    planned, actual = max(peaks.values(), key=lambda values: values[1])
    assert planned == pytest.approx(actual, rel=WITHIN)
    assert all(planned >= actual * (1 - WITHIN) for planned, actual in peaks.values())


def test_a_plan_for_two_models_in_turn_on_two_cards_holds(
    two_t4s: SimulatedControls, write_chunks: WriteChunks, tmp_path: Path
) -> None:
    models = [str(tiny_model("qwen2", layers=2)), str(tiny_model("bert", layers=2))]
    summary = plan_and_run(
        write_chunks(TEXTS), tmp_path / "out", models=models, mode="exclusive", devices="simulated:2x15GiB"
    )
    found = compared(summary)
    for model in ("tiny-qwen2", "tiny-bert"):
        for what in ("tokens", "tokens with padding", "new texts"):
            planned, actual = found[what, model]
            assert planned == actual > 0
    assert_peaks(found, cards=2)
    predicted = summary.collections[0].passes[0]
    assert predicted.predicted_peak_bytes >= predicted.peak_memory_bytes * (1 - WITHIN)


@pytest.mark.slow
def test_models_that_work_together_are_planned_where_they_are_put(
    two_t4s: SimulatedControls, write_chunks: WriteChunks, tmp_path: Path
) -> None:
    models = [str(tiny_model("bert", layers=2)), str(tiny_model("xlm-roberta", layers=2))]
    chunks, output = write_chunks(TEXTS), tmp_path / "out"
    made = plan(chunks, output, models=models, devices="simulated:2x15GiB", exports="none")
    assert made.collections[0].mode == "simultaneous"
    summary = embed(chunks, output, models=models, devices="simulated:2x15GiB", exports="none", quiet=True)
    (collection,) = summary.collections
    assert [each.devices for each in made.collections[0].passes] == [each.devices for each in collection.passes]
    assert_peaks(compared(summary), cards=2)


def test_the_peak_of_a_real_model_is_predicted(write_chunks: WriteChunks, tmp_path: Path) -> None:
    chunks = write_chunks(TEXTS[:40])
    summary = plan_and_run(
        chunks, tmp_path / "out", models="all-minilm-l6-v2", precision="fp32", devices="simulated:512MiB"
    )
    found = compared(summary)
    planned, actual = found["tokens", "all-minilm-l6-v2"]
    assert planned == actual > 0
    assert_peaks(found, cards=1)


def test_a_card_that_is_too_small_is_found_before_the_run(write_chunks: WriteChunks, tmp_path: Path) -> None:
    model, size = str(tiny_model("bert", hidden=256)), 4 << 20
    chunks = write_chunks(TEXTS[:10])
    made = plan(chunks, tmp_path / "out", models=[model], devices=f"simulated:{size}", exports="none")
    assert not made.fits
    assert "have no room on simulated:0" in made.verdict
    summary = embed(chunks, tmp_path / "out", models=[model], devices=f"simulated:{size}", exports="none", quiet=True)
    kinds = {each.type for each in summary.collections[0].mitigations}
    assert kinds & {"weights_on_host", "device_without_room"}
