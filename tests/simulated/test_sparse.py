"""Sparse models on simulated devices: a vocabulary that fills them, two at once, and one that is far too small."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SparseEncoder

from tests.support.tiny_models import tiny_model, tiny_splade
from ultimate_embedder import embed, open_output
from ultimate_embedder.batching import Batch
from ultimate_embedder.devices import MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import simulate
from ultimate_embedder.execution.placement import move
from ultimate_embedder.execution.worker import Worker
from ultimate_embedder.models import load_sparse_model, resolve_model
from ultimate_embedder.summary import CollectionSummary

MiB = 1 << 20
WORDS = 6_000


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_splade(hidden=32, layers=2, vocabulary=WORDS)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    rng = random.Random(0)
    return [f"{number} " + "word " * rng.randint(1, 40) + str(rng.random()) for number in range(40)]


@pytest.fixture(scope="module")
def expected(model: Path, texts: list[str]) -> np.ndarray:
    encoder = SparseEncoder(str(model), device="cpu")
    return np.asarray(encoder.encode_document(texts, convert_to_sparse_tensor=False))


@pytest.fixture
def run(tmp_path: Path, model: Path, texts: list[str]) -> Any:
    (tmp_path / "chunks" / "c").mkdir(parents=True)
    (tmp_path / "chunks" / "c" / "t_chunks.json").write_text(json.dumps(texts))

    def embed_on(devices: str, **options: Any) -> tuple[CollectionSummary, np.ndarray]:
        usual = {"models": str(tiny_model("bert")), "precision": "fp32", "exports": "parquet", "quiet": True}
        options = {**usual, "sparse": ["bm25", f"splade={model}"], **options}
        summary = embed(tmp_path / "chunks", tmp_path / "out", devices=devices, **options).collections[0]
        assert summary.status == "completed", summary.error
        return summary, open_output(tmp_path / "out")["c"].sparse_vectors("tiny-splade").to_dense(WORDS)

    return embed_on


def kinds(summary: CollectionSummary) -> set[str]:
    return {each.type for each in summary.mitigations if each.details.get("model") == "tiny-splade"}


def test_two_devices_share_a_sparse_pass(run: Any, expected: np.ndarray) -> None:
    summary, found = run("simulated:2x256MiB", mode="exclusive")
    splade = summary.passes[1]
    assert np.abs(found - expected).max() < 1e-4
    assert set(splade.tokens_by_device) == {"simulated:0", "simulated:1"}
    assert [(lease.model, lease.devices) for lease in summary.leases if lease.event_type == "acquire"] == [
        ("tiny-bert", ["simulated:0", "simulated:1"]),
        ("tiny-splade", ["simulated:0", "simulated:1"]),
    ]
    # the logits of 16 tokens of each row are most of what a batch takes
    assert splade.peak_memory_bytes > splade.largest_batch_rows * 16 * WORDS * 4
    assert not any(kind.startswith("oom") for kind in kinds(summary))


@pytest.mark.parametrize("devices", ["simulated:6MiB", "simulated:2MiB"])
def test_a_device_that_is_too_small_gives_the_same_vectors(run: Any, expected: np.ndarray, devices: str) -> None:
    summary, found = run(devices, mode="exclusive")
    assert np.abs(found - expected).max() < 1e-4
    splade = summary.passes[1]
    assert splade.encoded_texts == 40
    assert splade.reduced_batches > 0  # smaller batches, before or after one failed
    if devices.endswith(":2MiB"):  # no room for the weights, let alone for logits
        assert kinds(summary) >= {"weights_on_host", "oom_cpu"}
        assert any("were encoded on the CPU, in fp32: no GPU had room" in warning for warning in summary.warnings)


def test_half_precision_is_close(model: Path, texts: list[str], expected: np.ndarray) -> None:
    simulate([256 * MiB])
    (device,) = open_devices("simulated:256MiB", MemoryLimits())
    encoder = load_sparse_model(resolve_model(str(model)), "float16")
    assert move(encoder, device)
    tokenized, rows = encoder.tokenize(texts[:3]), np.arange(3)
    found = encoder.forward(encoder.batch(tokenized, rows)).cpu().numpy()
    encoder.model.to("cpu")
    assert found.dtype == np.float32
    assert 0 < np.abs(found - expected[:3]).max() < 0.02


@pytest.mark.slow
def test_a_vocabulary_that_fills_the_device_is_computed_a_token_at_a_time() -> None:
    words = 180_000  # of 16 floats: 12 MiB of weights, and as much for the logits of 16 tokens
    folder = tiny_splade(hidden=16, layers=2, vocabulary=words)
    encoder, fp32 = (load_sparse_model(resolve_model(str(folder)), "float32") for _ in range(2))
    capacity = 22 * MiB
    controls = simulate([capacity])
    (device,) = open_devices(f"simulated:{capacity}", MemoryLimits(safety_margin=0.0))
    texts = fp32.tokenize(["a text of some words " * 4])
    expected = fp32.forward(fp32.batch(texts, np.array([0]))).numpy()
    reports: list[str] = []
    assert move(encoder, device)
    worker = Worker(encoder, device, lambda: fp32, lambda mitigation, details: reports.append(mitigation.kind))
    encoded = worker.encode(texts, Batch(np.array([0]), int(texts.lengths[0])))
    assert np.abs(encoded.vectors - expected).max() < 1e-4
    assert not encoded.bad.any()
    assert reports[-1] == "oom_chunk"
    worker.close()
    encoder.model.to("cpu")
    controls.clear_workspaces()
    assert controls.usage(0)["allocated"] == 0
