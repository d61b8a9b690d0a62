"""The scenario "Mitigation metadata recorded", by the V5 script, the command line and Python, on simulated cards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from tests.support.ways import WAYS, Ran, Way
from ultimate_embedder.devices.simulated import simulate
from ultimate_embedder.models import Encoder, TokenBatch

MiB = 1 << 20
TEXTS = [f"number {number}: " + "some words " * (number % 40 + 1) for number in range(60)]

Run = Callable[..., Ran]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def run(
    request: pytest.FixtureRequest, write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Embed the texts in one of the three ways."""
    way: Way = request.param
    chunks = write_chunks(TEXTS)

    def start(devices: str, *architectures: Any) -> Ran:
        monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", devices)
        models = [str(tiny_model(architecture, hidden=64, layers=2)) for architecture in architectures]
        ran = way(chunks, tmp_path / "out", models, tmp_path / "summary.json")
        assert ran.ok
        return ran

    return start


def mitigations(ran: Ran) -> dict[str, dict[str, Any]]:
    """The first mitigation of each kind that the collection's entry records."""
    for each in ran.docs["mitigations"]:
        assert each["timestamp"] > 0
    return {each["type"]: each["details"] for each in reversed(ran.docs["mitigations"])}


def test_a_companion_on_the_second_card_is_recorded(run: Run) -> None:
    routed = mitigations(run("simulated:2x64MiB", "bert", "mpnet"))["companion_gpu_routed"]
    reason = "simulated:1 has room for it"
    assert routed == {"model": "tiny-mpnet", "before": "simulated:0", "after": "simulated:1", "reason": reason}


def test_a_companion_that_falls_back_to_the_cpu_is_recorded(run: Run) -> None:
    ran = run("simulated:64MiB+2MiB", "bert", "mpnet")
    assert [each["devices"] for each in ran.docs["passes"]] == [["simulated:0"], ["cpu"]]
    assert mitigations(ran)["companion_cpu_fallback"]["after"] == "cpu"


def test_an_adjusted_batch_size_is_recorded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    controls = simulate([256 * MiB])
    forward, first = Encoder.forward, iter([True])

    def failing_once(self: Encoder, batch: TokenBatch) -> Any:
        if batch.tokens > 1000 and next(first, False):  # of the texts, no trial
            controls.fail_after(0, 20)
        return forward(self, batch)

    monkeypatch.setattr(Encoder, "forward", failing_once)
    ran = run("simulated:256MiB", "bert")
    assert {"adaptive_batch_reduce_after_oom", "oom_bisect"} <= set(mitigations(ran))
    assert ran.docs["chunks"]["embedded"] == len(TEXTS)
