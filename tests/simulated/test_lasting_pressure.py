"""A device that stays too small: what was learned from one batch is used for the next, and nothing is done twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.slow import slow
from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder import embed
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.summary import RunSummary

MiB = 1 << 20
LONG = "a text of five hundred characters, as long as the model takes. " * 8


@pytest.fixture
def controls() -> Iterator[SimulatedControls]:
    """Simulated devices; afterwards nothing may be left on them, and nothing pinned."""
    controls = simulate([64 * MiB])
    pinned = controls.pinned()["bytes"]
    yield controls
    controls.clear_workspaces()
    assert controls.usage(0)["allocated"] == 0
    assert controls.pinned()["bytes"] <= pinned  # what a card held that died in an earlier test may be freed meanwhile


def run(tmp_path: Path, texts: list[str], architecture: Architecture, devices: str, **options: Any) -> RunSummary:
    """Embed the texts there, and on the CPU: the vectors must be the same."""
    folder = tmp_path / "chunks" / "c"
    folder.mkdir(parents=True)
    (folder / "t_chunks.json").write_text(json.dumps(texts))
    model = str(tiny_model(architecture, hidden=256, layers=8))
    common: dict[str, Any] = {"models": model, "exports": "npy", "quiet": True, **options}
    embed(tmp_path / "chunks", tmp_path / "cpu", devices="cpu", **common)
    summary = embed(tmp_path / "chunks", tmp_path / "small", devices=devices, precision="fp32", **common)
    ours, theirs = (np.load(tmp_path / name / "c" / "embeddings.npy") for name in ("small", "cpu"))
    assert (ours * theirs).sum(1).min() > 0.99999
    return summary


def mitigations(summary: RunSummary) -> Counter[str]:
    return Counter(each.type for each in summary.collections[0].mitigations)


def test_weights_of_a_streamed_pass_are_pinned_once_and_sent_as_layers(
    tmp_path: Path, controls: SimulatedControls
) -> None:
    texts = [f"text {number}" for number in range(64)]
    pinned, before = controls.pinned()["operations"], controls.traffic()
    summary = run(tmp_path, texts, "qwen3", "simulated:16MiB", batch_rows=4)
    batches, after = mitigations(summary)["oom_stream"], controls.traffic()
    assert batches >= 16
    tensors = 8 * 11  # layers, and weights of each
    each = 4  # features and results
    assert controls.pinned()["operations"] - pinned <= tensors + each * batches
    assert after["device_to_host"] - before["device_to_host"] < batches * 64 * 1024  # vectors, and no weights
    assert after["host_to_device"] - before["host_to_device"] > batches * 16 * MiB


@pytest.mark.parametrize(
    ("capacity", "rung"), [slow("46MiB", "oom_chunk"), ("30MiB", "oom_stream"), slow("12MiB", "oom_cpu")]
)
def test_a_length_that_needs_a_rung_goes_there_at_once(
    tmp_path: Path, controls: SimulatedControls, capacity: str, rung: str
) -> None:
    texts = [f"{number} {LONG}" for number in range(40)]
    simulate([64 * MiB])
    before = controls.usage(0)["failures"]
    summary = run(tmp_path, texts, "bert", f"simulated:{capacity}", batch_rows=1)
    assert mitigations(summary)[rung] >= 32
    assert controls.usage(0)["failures"] - before <= 20
