"""`Embedder` on simulated devices: all of them work, and their memory is as it was afterwards."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tests.support.all_devices import make_all_work
from tests.support.tiny_models import overflowing_model, tiny_model
from ultimate_embedder import Embedder
from ultimate_embedder.devices.simulated import SimulatedControls, simulate

MiB = 1 << 20
TEXTS = [f"text number {number} " * (number % 9 + 1) for number in range(100)]
MODELS = [str(tiny_model(architecture, prompts=True)) for architecture in ("bert", "mpnet")]


def allocated(controls: SimulatedControls, count: int = 2) -> list[int]:
    return [controls.usage(device)["allocated"] for device in range(count)]


def array(vectors: Any) -> np.ndarray:
    assert isinstance(vectors, np.ndarray)
    return vectors


def reference(**options: Any) -> dict[str, np.ndarray]:
    with Embedder(**options, devices="cpu") as embedder:
        vectors = embedder.encode(TEXTS)
    return vectors if isinstance(vectors, dict) else {"": vectors}


def test_models_stay_on_the_cards_between_calls_and_leave_them_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    controls = simulate([64 * MiB, 64 * MiB])
    before = allocated(controls)
    make_all_work(2, monkeypatch)
    with Embedder(MODELS[0], devices="simulated:2x64MiB", precision="fp32") as embedder:
        vectors = array(embedder.encode(TEXTS))
        between = allocated(controls)
        assert all(now > then for now, then in zip(between, before, strict=True))
        queries = array(embedder.encode_queries(TEXTS))
        assert allocated(controls) == between
    controls.clear_workspaces()
    assert allocated(controls) == before
    np.testing.assert_allclose(vectors, reference(models=MODELS[0])[""], atol=1e-5)
    with Embedder(MODELS[0], devices="cpu") as on_cpu:
        np.testing.assert_allclose(queries, array(on_cpu.encode_queries(TEXTS)), atol=1e-5)


def test_several_models_share_the_cards() -> None:
    simulate([64 * MiB, 64 * MiB])
    with Embedder(MODELS, devices="simulated:2x64MiB", precision="fp32") as embedder:
        vectors = embedder.encode(TEXTS)
    assert isinstance(vectors, dict)
    for name, expected in reference(models=MODELS).items():
        np.testing.assert_allclose(vectors[name], expected, atol=1e-5)


def test_a_card_that_is_too_small_does_not_stop_a_call() -> None:
    simulate([2 * MiB])
    told = pytest.warns(UserWarning, match="texts were encoded on the CPU, in fp32: no GPU had room for them")
    with Embedder(MODELS[0], devices="simulated:2MiB", precision="fp32") as embedder, told:
        vectors = array(embedder.encode(TEXTS))
    np.testing.assert_allclose(vectors, reference(models=MODELS[0])[""], atol=1e-5)


def test_that_fp16_is_too_narrow_is_found_out_once() -> None:
    model = str(overflowing_model("</s>"))
    simulate([64 * MiB])
    with Embedder(model, devices="simulated:64MiB", precision="fp16") as embedder:
        with pytest.warns(UserWarning, match="have no usable vector in fp16"):
            first = array(embedder.encode(TEXTS))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = array(embedder.encode(TEXTS))
    np.testing.assert_allclose(first, again, atol=1e-6)
    np.testing.assert_allclose(first, reference(models=model)[""], atol=1e-5)
