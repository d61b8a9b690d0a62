"""Whole runs on simulated devices, through the front door."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.models import row_cosines

MiB = 1 << 20


def write_texts(folder: Path, texts: list[str]) -> Path:
    (folder / "chunks" / "c").mkdir(parents=True)
    (folder / "chunks" / "c" / "t_chunks.json").write_text(json.dumps(texts))
    return folder / "chunks"


def vectors_of(output: Path, collection: str = "c") -> np.ndarray:
    return np.asarray(np.load(output / collection / "embeddings.npy"))


def test_the_sample_gives_the_same_vectors_on_two_simulated_t4s_and_on_the_cpu(
    docling_sample: Path, tmp_path: Path, two_t4s: SimulatedControls
) -> None:
    embed(docling_sample, tmp_path / "cpu", devices="cpu", exports="npy", quiet=True)
    summary = embed(
        docling_sample, tmp_path / "sim", devices="simulated:2x15GiB", precision="fp32", exports="npy", quiet=True
    )
    cpu, sim = vectors_of(tmp_path / "cpu", "Docling"), vectors_of(tmp_path / "sim", "Docling")
    assert cpu.shape == sim.shape == (40, 384)
    assert (cpu * sim).sum(1).min() > 0.99999
    assert summary.collections[0].passes[0].devices == ["simulated:0", "simulated:1"]


@pytest.mark.parametrize("architecture", ["xlm-roberta", "qwen3", "modernbert"])
def test_texts_that_spell_out_special_tokens_get_the_vectors_of_sentence_transformers(
    architecture: Architecture, tmp_path: Path, two_t4s: SimulatedControls
) -> None:
    words = ("<pad>", "[PAD]", "</s>", "<mask>", "<|endoftext|>")
    texts = [*words, *(f"Before it, {word} and behind it" for word in words), "<pad> " * 60, "nothing special"]
    model = str(tiny_model(architecture))
    options: dict[str, Any] = {"devices": "simulated:2x15GiB", "precision": "fp32", "exports": "npy", "quiet": True}
    embed(write_texts(tmp_path, texts), tmp_path / "sim", models=model, **options)
    reference = SentenceTransformer(model, device="cpu").encode(texts)
    assert row_cosines(vectors_of(tmp_path / "sim"), reference).min() > 0.99999


def test_half_precision_is_close_and_said(tmp_path: Path, two_t4s: SimulatedControls) -> None:
    chunks = write_texts(tmp_path, [f"text number {number}" for number in range(50)])
    model = str(tiny_model("xlm-roberta"))
    embed(chunks, tmp_path / "cpu", models=model, devices="cpu", exports="npy", quiet=True)
    summary = embed(chunks, tmp_path / "sim", models=model, devices="simulated:2x15GiB", exports="npy", quiet=True)
    assert summary.collections[0].passes[0].dtype == "float16"
    assert (vectors_of(tmp_path / "cpu") * vectors_of(tmp_path / "sim")).sum(1).min() > 0.999


def test_devices_can_be_chosen_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = write_texts(tmp_path, ["one", "two"])
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "simulated:64MiB+32MiB")
    arguments = ["embed", str(chunks), "--output", str(tmp_path / "out"), "--models", str(tiny_model("bert")), "--json"]
    assert main([*arguments, "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["options"]["devices"] == "simulated:64MiB+32MiB"
    assert summary["collections"][0]["leases"][0]["devices"] == ["simulated:0", "simulated:1"]


def test_both_devices_work_and_their_share_is_told(tmp_path: Path) -> None:
    chunks = write_texts(tmp_path, [f"{number} " + "word " * (number % 20) for number in range(600)])
    simulate([48 * MiB, 48 * MiB])
    options: dict[str, Any] = {"precision": "fp32", "batch_tokens": 512, "exports": "npy", "quiet": True}
    summary = embed(chunks, tmp_path / "out", models=str(tiny_model("bert")), devices="simulated:2x48MiB", **options)
    share = summary.collections[0].passes[0].tokens_by_device
    assert set(share) == {"simulated:0", "simulated:1"}
    assert sum(share.values()) == summary.collections[0].passes[0].tokens


@pytest.mark.slow
def test_predictions_hold_and_memory_is_used_on_a_large_workload(tmp_path: Path) -> None:
    rng = random.Random(0)
    chunks = write_texts(tmp_path, [f"{number} " + "word " * rng.randint(2, 90) for number in range(2500)])
    capacity = 96 * MiB
    controls = simulate([capacity])
    summary = embed(
        chunks,
        tmp_path / "out",
        models=str(tiny_model("qwen2", hidden=128, layers=4)),
        devices=f"simulated:{capacity}",
        precision="fp32",
        exports="npy",
        quiet=True,
    )
    current = summary.collections[0].passes[0]
    ceiling = capacity * 0.92
    assert current.batches > 20
    assert current.prediction_error is not None
    assert current.prediction_error < 0.10
    assert current.peak_reserved_bytes > 0.80 * ceiling
    assert controls.usage(0)["high_water"] <= ceiling
    assert controls.usage(0)["allocated"] == 0


def test_gradient_checkpointing_is_answered_honestly(tmp_path: Path) -> None:
    chunks = write_texts(tmp_path, ["one", "two"])
    summary = embed(
        chunks,
        tmp_path / "out",
        models=str(tiny_model("bert")),
        devices="simulated:64MiB",
        gradient_checkpointing=True,
        exports="npy",
        quiet=True,
    )
    assert summary.collections[0].warnings == [
        "gradient checkpointing saves memory in training only; nothing was switched on, no other mitigation was needed"
    ]


def test_a_model_larger_than_the_card_is_streamed(tmp_path: Path) -> None:
    chunks = write_texts(tmp_path, [f"text {number}" for number in range(20)])
    model = str(tiny_model("qwen3", hidden=256, layers=8))  # 21 MB of weights
    embed(chunks, tmp_path / "cpu", models=model, devices="cpu", exports="npy", quiet=True)
    simulate([16 * MiB])
    summary = embed(
        chunks, tmp_path / "sim", models=model, devices="simulated:16MiB", precision="fp32", exports="npy", quiet=True
    )
    kinds = {mitigation.type for mitigation in summary.collections[0].mitigations}
    assert {"device_without_room", "weights_on_host", "oom_stream"} <= kinds
    assert (vectors_of(tmp_path / "cpu") * vectors_of(tmp_path / "sim")).sum(1).min() > 0.99999


def test_snapshots_before_and_after_every_batch_are_events(tmp_path: Path) -> None:
    chunks = write_texts(tmp_path, [f"text {number}" for number in range(20)])
    embed(chunks, tmp_path / "o", models=str(tiny_model("bert")), devices="simulated:64MiB", exports="npy", quiet=True)
    events = [json.loads(line) for line in (tmp_path / "o" / "events.jsonl").read_text().splitlines()]
    batches = [event for event in events if event["event"] == "BatchEncoded"]
    for batch in batches:
        for moment in ("memory_before", "memory"):
            assert batch[moment]["device"] == "simulated:0"
            assert batch[moment]["total_bytes"] == 64 * MiB
        assert batch["memory"]["peak_bytes"] > batch["memory_before"]["allocated_bytes"]


def test_a_collection_that_is_forced_to_the_cpu_is_in_full_precision_there(tmp_path: Path) -> None:
    chunks = write_texts(tmp_path, [f"text number {number}" for number in range(30)])
    (chunks / "d").mkdir()
    (chunks / "d" / "t_chunks.json").write_text((chunks / "c" / "t_chunks.json").read_text())
    options: dict[str, Any] = {"models": str(tiny_model("bert")), "exports": "npy", "quiet": True}
    summary = embed(chunks, tmp_path / "both", devices="simulated:64MiB", force_cpu="d", **options)
    embed(chunks, tmp_path / "cpu", devices="cpu", **options)
    assert [each.passes[0].dtype for each in summary.collections] == ["float16", "float32"]
    half, full = (np.abs(vectors_of(tmp_path / "both", c) - vectors_of(tmp_path / "cpu", c)).max() for c in "cd")
    assert full < 1e-6 < half
