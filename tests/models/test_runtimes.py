"""Other runtimes: exported once, checked, and honest about what they cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder import embed
from ultimate_embedder.config import Backend
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models import Encoder, load_encoder, require_backend, resolve_model, row_cosines, use_backend
from ultimate_embedder.options import make_config

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

TEXTS = [f"{number} " + "some words " * (number * 7 % 23) for number in range(20)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ultimate-embedder" / "exported"


def vectors_of(encoder: Encoder) -> np.ndarray:
    texts = encoder.tokenize(TEXTS)
    return np.asarray(encoder.forward(encoder.batch(texts, np.arange(len(TEXTS)))).numpy())


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta", "qwen2"])
def test_every_runtime_agrees_with_torch(backend: Backend, architecture: Architecture) -> None:
    model = resolve_model(str(tiny_model(architecture)))
    encoder = load_encoder(model, "float32", "cpu")
    exported = use_backend(encoder, model, backend, int8=False)
    assert row_cosines(vectors_of(exported), vectors_of(encoder)).min() > 0.99999


def test_workers_share_the_weights_of_a_graph_and_copy_those_of_torch() -> None:
    model = resolve_model(str(tiny_model("bert")))
    encoder = load_encoder(model, "float32", "cpu")
    exported = use_backend(encoder, model, "onnx", int8=True)
    assert exported.replica() is exported
    assert encoder.replica().model is not encoder.model
    assert (encoder.dtype, exported.dtype) == ("float32", "int8")
    assert encoder.can_pack(CpuDevice())
    assert not exported.can_pack(CpuDevice())


def test_a_backend_without_its_packages_names_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    require_backend("torch")
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    message = r"--backend openvino needs openvino and onnx: pip install 'ultimate-embedder\[openvino\]'"
    with pytest.raises(UsageError, match=message):
        require_backend("openvino")
    require_backend("torch")


def test_a_model_is_exported_once(own_cache: Path) -> None:
    model = resolve_model(str(tiny_model("bert")))
    encoder = load_encoder(model, "float32", "cpu")
    use_backend(encoder, model, "onnx", int8=False)
    (file,) = own_cache.glob("*/model.onnx")
    written = file.stat().st_mtime_ns
    use_backend(encoder, model, "onnx", int8=False)
    assert file.stat().st_mtime_ns == written
    assert file.parent.name == model.digest[:32]


def test_an_export_that_does_not_agree_is_refused(own_cache: Path) -> None:
    right = resolve_model(str(tiny_model("bert")))
    wrong = resolve_model(str(tiny_model("bert", layers=2)))
    use_backend(load_encoder(wrong, "float32", "cpu"), wrong, "onnx", int8=False)
    (file,) = own_cache.glob("*/model.onnx")
    (own_cache / right.digest[:32]).mkdir()
    file.rename(own_cache / right.digest[:32] / "model.onnx")
    with pytest.raises(ModelError, match="differs from torch"):
        use_backend(load_encoder(right, "float32", "cpu"), right, "onnx", int8=False)


def test_int8_says_what_it_costs_on_this_collection(write_chunks: WriteChunks, tmp_path: Path) -> None:
    chunks = write_chunks(TEXTS)
    options: dict[str, Any] = {"models": [str(tiny_model("bert"))], "devices": "cpu", "exports": "npy", "quiet": True}
    summary = embed(chunks, tmp_path / "out", precision="int8", **options)
    (single,) = summary.collections[0].passes
    assert single.dtype == "int8"
    assert single.agreement is not None
    assert single.agreement.texts == len(TEXTS)
    assert 0.9 < single.agreement.worst_cosine <= single.agreement.mean_cosine < 1
    again = embed(chunks, tmp_path / "out", precision="int8", **options)
    assert again.collections[0].passes[0].encoded_texts == 0
    assert again.collections[0].passes[0].agreement == single.agreement
    (kept,) = (tmp_path / "out").glob("*/store/*/agreement.json")
    kept.unlink()  # as a run leaves it that is stopped after its last vector
    late = embed(chunks, tmp_path / "out", precision="int8", **options)
    assert late.collections[0].passes[0].encoded_texts == 0
    assert late.collections[0].passes[0].agreement == single.agreement
    exact = embed(chunks, tmp_path / "out", **options)  # vectors of another precision are other vectors
    assert exact.collections[0].passes[0].encoded_texts == len(TEXTS)
    assert exact.collections[0].passes[0].agreement is None


def test_openvino_is_imported_without_its_telemetry_package() -> None:
    program = "import sys; from ultimate_embedder.models.runtimes.openvino import import_openvino as run; run()"
    program += "; print('openvino_telemetry' in sys.modules, hasattr(sys.modules['openvino'], 'Core'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_backends_that_pad_share_the_vectors_of_fp32(write_chunks: WriteChunks, tmp_path: Path) -> None:
    options: dict[str, Any] = {"models": [str(tiny_model("bert"))], "devices": "cpu", "exports": "npy", "quiet": True}
    chunks = write_chunks(TEXTS)
    embed(chunks, tmp_path / "out", backend="onnx", **options)
    again = embed(chunks, tmp_path / "out", backend="openvino", **options)
    assert again.collections[0].chunks.newly_encoded == 0
    packed = embed(chunks, tmp_path / "out", **options)  # torch lays rows end to end: a pass of its own
    assert packed.collections[0].chunks.newly_encoded == len(TEXTS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8", "backend": "torch"}, "--precision int8 needs --backend onnx, not torch"),
        ({"precision": "fp16", "backend": "onnx"}, "--backend onnx computes in fp32"),
        ({"backend": "onyx"}, "Did you mean onnx"),
    ],
)
def test_what_cannot_be_together_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_config(tmp_path, tmp_path / "out", **options)  # type: ignore[arg-type]
