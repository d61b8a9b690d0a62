"""--min-cosine measures what a precision costs before it is used, and bf16 is tried before it is used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import Embedder, embed, plan
from ultimate_embedder.devices import Bf16Trial
from ultimate_embedder.execution import precision_choice
from ultimate_embedder.models import load_encoder, products_in_bf16, resolve_model, row_cosines
from ultimate_embedder.models.export_child import make_graph
from ultimate_embedder.models.exported import GraphWish
from ultimate_embedder.models.int8 import GROUPS, in_groups
from ultimate_embedder.summary import RunSummary
from ultimate_embedder.types import MeasuredWay, PassIdentity
from ultimate_embedder.vectors import Choice, read_choice, write_choice

TEXTS = [f"{number} " + "some words " * (number * 7 % 23) for number in range(20)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tiny model, whose graph in int8 is in the cache already."""
    pytest.importorskip("openvino")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        folder = str(tiny_model("bert"))
        make_graph(GraphWish(resolve_model(folder), "openvino", int8=True))
        yield folder


def run(chunks: Path, output: Path, model: str, **options: Any) -> RunSummary:
    given = {"precision": "int8", "devices": "cpu", "exports": "npy", "quiet": True, **options}
    if given["precision"] == "int8":
        given["backend"] = "openvino"
    return embed(chunks, output, models=[model], **given)


def test_the_choice_is_told_kept_and_made_again_when_more_is_asked_for(
    model: str, write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ultimate_embedder.devices.cpu.has_vnni", lambda: True)  # three ways, whatever computes them
    chunks, output = write_chunks(TEXTS), tmp_path / "out"
    first = run(chunks, output, model, min_cosine=0.9).collections[0].passes[0]
    assert first.choice is not None
    assert [way.quantization for way in first.choice.measured] == list(map(in_groups, GROUPS))
    assert all(way.texts == len(TEXTS) and 0.9 < way.worst_cosine <= way.mean_cosine for way in first.choice.measured)
    fastest = max(first.choice.measured, key=lambda way: way.speed)
    assert first.quantization == fastest.quantization
    assert not first.choice.kept
    told = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    (chosen,) = [event for event in told if event["event"] == "PrecisionChosen"]
    assert chosen["quantization"] == first.quantization

    monkeypatch.setattr(precision_choice, "_measure_all", None)  # fails if it is called
    planned = plan(chunks, output, models=[model], precision="int8", backend="openvino", devices="cpu", min_cosine=0.9)
    assert planned.collections[0].passes[0].new_texts == 0
    again = run(chunks, output, model, min_cosine=0.9).collections[0].passes[0]
    assert (again.encoded_texts, again.quantization, again.fingerprint) == (0, first.quantization, first.fingerprint)
    assert again.choice is not None
    assert again.choice.kept
    monkeypatch.undo()
    refused = run(chunks, output, model, min_cosine=0.9999999).collections[0]
    assert refused.status == "failed"
    assert "no way to compute tiny-bert in int8 is that near to fp32" in (refused.error or "")
    assert "mean 0.9" in (refused.error or "")


@pytest.mark.filterwarnings("ignore:tiny-bert. int8")
def test_an_embedder_chooses_by_the_texts_of_its_first_call(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Embedder(model, devices="cpu", precision="int8", min_cosine=0.5) as embedder:
        first = np.asarray(embedder.encode(TEXTS[:4]))
        monkeypatch.setattr(precision_choice, "_measure_all", None)
        assert np.allclose(np.asarray(embedder.encode(TEXTS[:4])), first, atol=1e-5)


def test_a_damaged_choice_is_not_used(tmp_path: Path) -> None:
    identity = PassIdentity("m", "r", "d", "int8", None, None, None, quantization="openvino-128")
    ways = [MeasuredWay(f"openvino-{size}", 64, 0.999, 0.998, 1.5) for size in (128, 64)]
    write_choice(tmp_path, identity, ways[1], ways)
    assert read_choice(tmp_path, identity) == Choice(ways[1], tuple(ways))
    (file,) = tmp_path.glob("choice-*.json")
    file.write_text(file.read_text().replace('"chosen": 1', '"chosen": 0'))
    assert "checksum does not match" in str(read_choice(tmp_path, identity))


def test_bf16_is_for_products_and_the_rest_stays_in_fp32() -> None:
    resolved = resolve_model(str(tiny_model("bert")))
    plain = load_encoder(resolved, "float32", "cpu")
    changed = products_in_bf16(load_encoder(resolved, "float32", "cpu"))
    texts, rows = plain.tokenize(TEXTS), np.arange(len(TEXTS))
    cosines = row_cosines(
        changed.forward(changed.batch(texts, rows)).numpy(), plain.forward(plain.batch(texts, rows)).numpy()
    )
    assert 0.999 < cosines.min() < 1 - 1e-7
    assert changed.dtype == "bfloat16"
    formats = {name: str(weight.dtype) for name, weight in changed.transformer.named_parameters()}
    assert formats["encoder.layer.0.attention.self.query.weight"] == "torch.bfloat16"
    assert formats["encoder.layer.0.attention.output.LayerNorm.weight"] == "torch.float32"


def test_bf16_that_is_slow_is_said_and_one_that_kills_a_process_is_refused(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks, folder = write_chunks(TEXTS), str(tiny_model("bert"))
    monkeypatch.setattr("ultimate_embedder.session.try_bf16", lambda: Bf16Trial(None, 7.0))
    summary = run(chunks, tmp_path / "slow", folder, precision="bf16")
    assert any("takes 7.0 times as long as in fp32" in warning for warning in summary.warnings)
    (single,) = summary.collections[0].passes
    assert single.dtype == "bfloat16"
    assert single.agreement is not None
    assert 0.999 < single.agreement.mean_cosine < 1
    died = "the process died of SIGILL (illegal instruction)"
    monkeypatch.setattr("ultimate_embedder.session.try_bf16", lambda: Bf16Trial(died))
    refused = run(chunks, tmp_path / "dead", folder, precision="bf16").collections[0]
    assert refused.status == "failed"
    assert f"this CPU cannot compute in it ({died})" in (refused.error or "")
