"""A model without its weights: the same tokens, the same memory, the same kernels."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support.slow import slow
from tests.support.tiny_models import ARCHITECTURES, tiny_model
from ultimate_embedder.errors import ModelError
from ultimate_embedder.models import KNOWN_CONFIGS, load_encoder, load_without_weights, resolve_model
from ultimate_embedder.models.known_configs import write_stand_in
from ultimate_embedder.models.registry import find_spec
from ultimate_embedder.types import ResolvedModel

T4, A100 = (7, 5), (8, 0)
TEXTS = ["a text", "another text that is somewhat longer", "x" * 600]
POINTS = [(4, 8), (20, 64), (4, 200)]


def without_weights(folder: Path, target: Path) -> ResolvedModel:
    """A copy of a model that has everything but the weights."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    assert not list(target.rglob("*.safetensors"))
    return ResolvedModel(folder.name, None, target, "folder", "", "", 0)


@pytest.mark.parametrize("architecture", [*(slow(each) for each in ARCHITECTURES if each != "qwen2"), "qwen2"])
def test_it_is_the_same_model(architecture: Any, tmp_path: Path) -> None:
    folder = tiny_model(architecture)
    bare = load_without_weights(without_weights(folder, tmp_path / folder.name), "float16")
    real = load_encoder(resolve_model(str(folder)), "float16", "cpu")
    assert (bare.weight_bytes, bare.layers, bare.layer_weights) == (real.weight_bytes, real.layers, real.layer_weights)
    assert (bare.dim, bare.max_tokens, bare.tokenizes) == (real.dim, real.max_tokens, True)
    assert bare.tokenizer_fingerprint() == real.tokenizer_fingerprint()
    assert bare.tokenize(TEXTS).lengths.tolist() == real.tokenize(TEXTS).lengths.tolist()
    for rows, length in POINTS:
        for capability in (T4, A100):
            assert bare.peak_bytes(rows, length, capability) == real.peak_bytes(rows, length, capability)


def test_rows_of_one_length_take_less_memory_than_padded_ones() -> None:
    encoder = load_without_weights(resolve_model(str(tiny_model("bert"))), "float16")
    uniform = encoder.peak_bytes(8, 512, T4, has_padding=False)
    assert uniform < encoder.peak_bytes(8, 512, T4)


def test_kernels_are_counted_with_few_layers_as_with_all() -> None:
    encoder = load_without_weights(resolve_model(str(tiny_model("bert", layers=6))), "float16")
    cost = encoder.forward_cost(4, 32, T4)
    all_layers = encoder._peaks._count(4, 32, T4, 6)
    assert (cost.calls, cost.flops, cost.moved_bytes) == (
        all_layers.calls,
        all_layers.flops,
        all_layers.moved_bytes,
    )


def test_another_thread_loads_weights_meanwhile(tmp_path: Path) -> None:
    from ultimate_embedder.models.without_weights import _no_weights

    base, found = tiny_model("bert"), []

    def load() -> None:
        model: Any = transformers.AutoModel.from_pretrained(str(base))
        found.append(next(model.parameters()).device.type)

    original = transformers.PreTrainedModel.__dict__["from_pretrained"]
    with _no_weights():
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
    assert found == ["cpu"]
    assert transformers.PreTrainedModel.__dict__["from_pretrained"] is original


def test_a_model_that_would_run_code_is_refused(tmp_path: Path) -> None:
    model = without_weights(tiny_model("bert"), tmp_path / "evil")
    config = model.path / "config.json"
    config.write_text(config.read_text("utf-8").replace("{", '{"auto_map": {"AutoModel": "evil.Model"}, ', 1))
    with pytest.raises(ModelError, match="code"):
        load_without_weights(model, "float32")


def test_the_registry_knows_the_sizes_of_a_model(minilm: Path, tmp_path: Path) -> None:
    spec = find_spec("all-minilm-l6-v2")
    assert spec is not None
    folder = write_stand_in(spec, KNOWN_CONFIGS[spec.key], tmp_path)
    known = load_without_weights(ResolvedModel(spec.key, spec, folder, "folder", "", "", 0), "float16", stand_in=True)
    real = load_without_weights(resolve_model(str(minilm)), "float16")
    assert (known.weight_bytes, known.dim, known.layers) == (real.weight_bytes, real.dim, real.layers)
    assert known.peak_bytes(4, 128, T4) == real.peak_bytes(4, 128, T4)
    words = "The wing is a slender body; its drag, at 0.8 times the speed of sound, is unknown."
    ours, theirs = (encoder.tokenize([words]).lengths[0] for encoder in (known, real))
    assert 0.75 * theirs <= ours <= 1.34 * theirs


@pytest.mark.parametrize("key", sorted({*KNOWN_CONFIGS} - {"all-minilm-l6-v2"}))
def test_every_known_config_is_of_a_registered_model(key: str, tmp_path: Path) -> None:
    spec = find_spec(key)
    assert spec is not None
    known = KNOWN_CONFIGS[key]
    folder = write_stand_in(spec, known, tmp_path)
    encoder = load_without_weights(ResolvedModel(key, spec, folder, "folder", "", "", 0), "float16", stand_in=True)
    assert (encoder.dim, encoder.max_tokens, encoder.layers) == (spec.dim, spec.max_tokens, known.layers)
    assert encoder.tokenizes
    assert encoder.tokenize(["two words"]).lengths[0] > 2
