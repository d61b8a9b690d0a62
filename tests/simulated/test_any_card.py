"""What must hold on every card: on simulated ones here, on a real one with `make gpu-check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteChunks
from tests.support.cards import DEVICES, SIMULATED
from tests.support.slow import slow
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.devices import Device, MemoryLimits, open_devices
from ultimate_embedder.summary import CollectionSummary

MiB = 1 << 20
TEXTS = [
    f"{number} " + "words of " * (number % 12 + 1) for number in range(48)
]  # few: fp16 is slow where it is simulated
LONG = [f"{number} " + "x" * (480 - number) for number in range(40)]
COSINE = {"float32": 0.99999, "float16": 0.999, "bfloat16": 0.99}

Run = Callable[..., tuple[CollectionSummary, np.ndarray]]


@pytest.fixture
def run(write_chunks: WriteChunks, tmp_path: Path) -> Run:
    """Embed texts on the cards; gives the summary of the collection and the vectors."""
    numbers = iter(range(99))

    def embed_texts(texts: list[str] = TEXTS, **options: Any) -> tuple[CollectionSummary, np.ndarray]:
        output = tmp_path / f"out{next(numbers)}"
        given = {"models": str(tiny_model("bert")), "devices": DEVICES, "exports": "npy", "quiet": True, **options}
        (collection,) = embed(write_chunks(texts), output, **given).collections
        assert collection.status == "completed", collection.error
        return collection, np.load(output / "docs" / "embeddings.npy")

    return embed_texts


@pytest.fixture
def cards() -> list[Device]:
    return open_devices(DEVICES, MemoryLimits())


def worst_cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum(axis=1).min())


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta", "mpnet", "qwen2", "qwen3"])
@pytest.mark.parametrize("precision", [slow("fp32"), "auto"])
def test_vectors_are_those_of_the_cpu(run: Run, architecture: Any, precision: str) -> None:
    model = str(tiny_model(architecture))
    _, expected = run(models=model, devices="cpu", precision="fp32")
    collection, found = run(models=model, precision=precision)
    assert worst_cosine(found, expected) > COSINE[collection.passes[0].dtype]


def test_two_runs_give_the_same_bits(run: Run) -> None:
    assert np.array_equal(run()[1], run()[1])


def test_the_three_modes_agree(run: Run) -> None:
    models = [str(tiny_model("bert")), str(tiny_model("qwen2"))]
    found = [run(models=models, fusion="concat", mode=mode)[1] for mode in ("exclusive", "sequential", "simultaneous")]
    assert np.abs(found[0] - found[1]).max() < 1e-5
    if len(open_devices(DEVICES, MemoryLimits())) > 1:  # else the companion works on the CPU, in fp32
        assert np.abs(found[0] - found[2]).max() < 1e-5


def test_every_card_works_on_a_pass(run: Run, cards: list[Device]) -> None:
    # so many batches that a fast card cannot take them all before the other has its weights
    texts = [f"{number} text" for number in range(800 if SIMULATED else 20_000)]
    collection, _ = run(texts, batch_tokens=512, precision="fp32")
    assert set(collection.passes[0].tokens_by_device) == {card.name for card in cards}


def test_a_lease_leaves_nothing_behind(run: Run) -> None:
    collection, _ = run()
    released = [lease for lease in collection.leases if lease.event_type == "release"]
    assert [lease.leftovers for lease in released] == [[]]


def test_a_low_ceiling_is_kept_and_every_text_is_encoded(run: Run, cards: list[Device]) -> None:
    now = cards[0].snapshot()
    ceiling = now.outside_bytes + (48 * MiB if SIMULATED else 256 * MiB)
    model = str(tiny_model("bert", hidden=256, layers=4))
    _, expected = run(LONG, models=model, devices="cpu")
    collection, found = run(LONG, models=model, gpu0_ceiling=ceiling, device_order="0", precision="fp32")
    assert collection.passes[0].peak_reserved_bytes + now.outside_bytes <= ceiling
    assert worst_cosine(found, expected) > 0.99999


@pytest.mark.parametrize("architecture", ["bert", "qwen2"])
def test_peaks_are_predicted(run: Run, architecture: Any) -> None:
    model = str(tiny_model(architecture, hidden=256, layers=4))
    texts = [f"{number} " + "x" * (100 + number % 380) for number in range(150)]
    collection, _ = run(texts, models=model, batch_tokens=2048, precision="fp32")
    error = collection.passes[0].prediction_error
    assert error is not None
    assert error < 0.1


def test_a_real_lack_of_memory_is_recognised(cards: list[Device]) -> None:
    import torch

    now = cards[0].snapshot()
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2 * now.total_bytes, dtype=torch.uint8, device=cards[0].torch_device)
    assert cards[0].is_out_of_memory(caught.value)


def test_what_a_batch_took_is_measured_by_the_card(run: Run, tmp_path: Path) -> None:
    collection, _ = run()
    assert collection.passes[0].forward_seconds > 0
    lines = (tmp_path / "out0" / "events.jsonl").read_text("utf-8").splitlines()
    batches = [event for event in map(json.loads, lines) if event["event"] == "BatchEncoded"]
    assert batches
    assert all(batch["forward_seconds"] > 0 and batch["wait_seconds"] >= 0 for batch in batches)
