"""Other runtimes: exported and checked once, without torch's weights, and honest about what they cost."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from tests.conftest import WriteChunks
from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder import embed
from ultimate_embedder.config import Backend
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models import (
    Encoder,
    export_child,
    load_encoder,
    load_on_backend,
    require_backend,
    resolve_model,
    row_cosines,
)
from ultimate_embedder.models.export_child import make_graph
from ultimate_embedder.models.exported import GraphWish, read_graph
from ultimate_embedder.models.int8 import GROUPS, WEIGHTS_ONLY, group_size, in_groups, possible_ways
from ultimate_embedder.models.runtimes import OpenVinoRuntime
from ultimate_embedder.models.runtimes.export import export_onnx
from ultimate_embedder.models.runtimes.int8_weights import quantize
from ultimate_embedder.models.runtimes.openvino import import_openvino
from ultimate_embedder.options import make_config
from ultimate_embedder.types import ResolvedModel

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")

TEXTS = [f"{number} " + "some words " * (number * 7 % 23) for number in range(20)]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "ultimate-embedder" / "exported"


def on_backend(model: ResolvedModel, backend: Backend, way: str | None = None, *, int8: bool = False) -> Encoder:
    """Exported in this process, which saves the start of a child."""
    wish = GraphWish(model, backend, int8)
    if read_graph(wish) is None:
        make_graph(wish)
    return load_on_backend(model, backend, int8=int8, way=way)


def vectors_of(encoder: Encoder, rows: list[int] | None = None) -> np.ndarray:
    texts = encoder.tokenize(TEXTS)
    chosen = np.arange(len(TEXTS)) if rows is None else np.array(rows)
    return np.asarray(encoder.forward(encoder.batch(texts, chosen)).numpy())


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta", "qwen2"])
def test_every_runtime_agrees_with_torch(backend: Backend, architecture: Architecture) -> None:
    model = resolve_model(str(tiny_model(architecture)))
    encoder = load_encoder(model, "float32", "cpu")
    assert row_cosines(vectors_of(on_backend(model, backend)), vectors_of(encoder)).min() > 0.99999


def test_workers_share_the_weights_of_a_graph_and_copy_those_of_torch() -> None:
    model = resolve_model(str(tiny_model("bert")))
    encoder = load_encoder(model, "float32", "cpu")
    exported = on_backend(model, "onnx", int8=True)
    assert exported.replica() is exported
    assert encoder.replica().model is not encoder.model
    assert (encoder.dtype, exported.dtype) == ("float32", "int8")
    assert encoder.can_pack(CpuDevice())
    assert not exported.can_pack(CpuDevice())


def test_a_graph_has_no_weights_of_torch_beside_it() -> None:
    exported = on_backend(resolve_model(str(tiny_model("bert"))), "openvino")
    assert all(weight.is_meta for weight in exported.model.parameters())
    assert (exported.device.type, exported.tensors_off_host()) == ("cpu", [])


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_graph_of_a_fused_model_needs_neither_sentence_transformers_nor_transformers(backend: Backend) -> None:
    model = resolve_model(str(tiny_model("bert")))
    expected = vectors_of(load_encoder(model, "float32", "cpu"))
    assert row_cosines(vectors_of(on_backend(model, backend)), expected).min() > 0.99999
    script = (
        "import sys\n"
        "from ultimate_embedder.models import load_on_backend, resolve_model\n"
        "encoder = load_on_backend(resolve_model(sys.argv[1]), sys.argv[2])\n"
        "print(encoder.dtype, sorted({'transformers', 'sentence_transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(model.path), backend], capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.stderr) == ("float32 []\n", "")


def test_an_export_with_plain_attention_that_differs_is_made_again_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    model = resolve_model(str(tiny_model("bert", layers=2)))
    implementations = []
    export, compare = export_child._export, export_child._compare

    def listen(encoder: Encoder, wish: GraphWish) -> None:
        implementations.append(encoder.transformer.config._attn_implementation)
        export(encoder, wish)

    def refuse_first(encoder: Encoder, wish: GraphWish, divisor: int) -> float:
        if len(implementations) == 1:
            raise ModelError("differs")
        return compare(encoder, wish, divisor)

    monkeypatch.setattr(export_child, "_export", listen)
    monkeypatch.setattr(export_child, "_compare", refuse_first)
    make_graph(GraphWish(model, "onnx", int8=False))
    assert implementations == ["eager", "ultimate_embedder"]
    assert read_graph(GraphWish(model, "onnx", int8=False)) is not None


def test_a_model_without_plain_attention_is_exported_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: Any) -> None:
        raise ValueError("there is no eager attention")

    monkeypatch.setattr(export_child, "eager_attention", refuse)
    wish = GraphWish(resolve_model(str(tiny_model("bert", layers=2, max_tokens=64))), "onnx", int8=False)
    make_graph(wish)
    assert read_graph(wish) is not None


def test_modules_after_the_transformer_keep_their_weights(tmp_path: Path) -> None:
    with_dense = SentenceTransformer(str(tiny_model("bert")), device="cpu")
    with_dense.append(Dense(64, 32))
    with_dense.save(str(tmp_path / "dense"))
    model = resolve_model(str(tmp_path / "dense"))
    exported, encoder = on_backend(model, "openvino"), load_encoder(model, "float32", "cpu")
    assert row_cosines(vectors_of(exported), vectors_of(encoder)).min() > 0.99999


@pytest.mark.parametrize("way", [WEIGHTS_ONLY, in_groups(GROUPS[0])])
def test_a_vector_in_int8_does_not_depend_on_the_texts_beside_it(way: str, minilm: Path) -> None:
    exported = on_backend(resolve_model(str(minilm)), "openvino", way, int8=True)
    together = vectors_of(exported)
    for rows in ([0], [7, 3], [3, 19, 11, 0, 1], list(reversed(range(len(TEXTS))))):  # other neighbours, order, padding
        assert np.abs(vectors_of(exported, rows) - together[rows]).max() < 1e-5


def test_openvino_computes_fp32_in_fp32_and_int8_in_the_groups_that_fit() -> None:
    model = resolve_model(str(tiny_model("bert")))
    plain = on_backend(model, "openvino").runtime
    assert isinstance(plain, OpenVinoRuntime)
    assert "float32" in plain.setting("INFERENCE_PRECISION_HINT")
    assert plain.setting("DYNAMIC_QUANTIZATION_GROUP_SIZE") == "0"
    grouped = on_backend(model, "openvino", in_groups(128), int8=True).runtime
    assert isinstance(grouped, OpenVinoRuntime)
    assert "float32" in grouped.setting("INFERENCE_PRECISION_HINT")
    assert grouped.setting("DYNAMIC_QUANTIZATION_GROUP_SIZE") == "64"  # the model is 64 wide


def test_groups_fit_every_product() -> None:
    assert [group_size(in_groups(128), size) for size in (384, 768, 320, 48, 312)] == [128, 128, 64, 16, 0]
    assert group_size(WEIGHTS_ONLY, 384) == 0
    assert [group_size(word, 384) for word in ("openvino-64", "openvino-weights")] == [64, 0]  # of earlier outputs
    assert possible_ways("openvino", has_vnni=False) == (WEIGHTS_ONLY,)
    assert possible_ways("onnx", has_vnni=True) == (None,)


def test_int8_weights_are_near_to_what_they_stand_for() -> None:
    weights = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    weights[3], weights[4] = 0, np.abs(weights[4]) + 1  # no scale, and no zero among the values
    stored, zero, scale = quantize(weights, 1)
    assert stored.dtype == zero.dtype == np.uint8
    assert (np.abs((stored.astype(np.float32) - zero) * scale - weights) <= scale / 2 + 1e-6).all()


def test_a_backend_without_its_packages_names_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    require_backend("torch")
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    message = r"--backend openvino needs openvino and onnx: pip install 'ultimate-embedder\[openvino\]'"
    with pytest.raises(UsageError, match=message):
        require_backend("openvino")
    require_backend("torch")


def test_int8_is_that_of_our_own_kernels_else_openvinos_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def chosen(**options: str) -> str:
        return make_config(tmp_path, tmp_path / "out", precision="int8", **options).backend  # type: ignore[arg-type]

    monkeypatch.setattr("ultimate_embedder.models.has_native_int8", lambda: True)
    assert chosen() == chosen(backend="torch") == "torch"
    assert chosen(backend="openvino") == "openvino"
    assert chosen(engine="ray") == "openvino"  # the nodes may have no compiler
    monkeypatch.setattr("ultimate_embedder.models.has_native_int8", lambda: False)
    with pytest.raises(UsageError, match=r"needs a CPU with AVX-512 VNNI, and a C\+\+ compiler .* --backend openvino"):
        chosen(backend="torch")
    assert chosen() == "openvino"
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None if package == "openvino" else object())
    assert chosen() == "onnx"
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    assert chosen() == "openvino"  # the error names what to install


def test_a_model_is_exported_and_checked_once_in_a_child(cache: Path) -> None:
    model = resolve_model(str(tiny_model("bert", layers=3)))
    load_on_backend(model, "onnx")
    (file,) = (cache / model.digest[:32]).glob("model.onnx")
    written = file.stat().st_mtime_ns
    load_on_backend(model, "onnx")
    assert file.stat().st_mtime_ns == written


def test_a_graph_that_is_not_what_was_checked_is_not_used(cache: Path) -> None:
    model = resolve_model(str(tiny_model("bert")))
    wish = GraphWish(model, "openvino", int8=True)
    on_backend(model, "openvino", WEIGHTS_ONLY, int8=True)
    weights = wish.path.with_suffix(".bin")
    content = bytearray(weights.read_bytes())
    content[100] ^= 1
    weights.write_bytes(content)
    assert read_graph(wish) is None
    make_graph(wish)
    assert read_graph(wish) is not None
    wish.record.write_text(wish.record.read_text().replace('"divisor": 64', '"divisor": 32'))
    assert read_graph(wish) is None


def test_a_graph_whose_weights_were_made_otherwise_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = resolve_model(str(tiny_model("bert")))
    on_backend(model, "openvino", WEIGHTS_ONLY, int8=True)
    wish = GraphWish(model, "openvino", int8=True)
    assert read_graph(wish) is not None
    monkeypatch.setattr("ultimate_embedder.models.exported.BALANCED", "another way")
    assert read_graph(wish) is None


def test_an_export_that_does_not_agree_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, wrong = (resolve_model(str(tiny_model("bert", layers=layers))) for layers in (4, 5))
    other = load_encoder(wrong, "float32", "cpu").transformer
    monkeypatch.setattr(export_child, "export_onnx", lambda transformer, *rest: export_onnx(other, *rest))
    with pytest.raises(ModelError, match="differs from torch"):
        make_graph(GraphWish(model, "onnx", int8=False))
    assert read_graph(GraphWish(model, "onnx", int8=False)) is None


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
        ({"precision": "fp16", "backend": "onnx"}, "--backend onnx computes in fp32"),
        ({"precision": "bf16", "backend": "openvino"}, "--backend openvino computes in fp32"),
        ({"min_cosine": "0.999"}, "--min-cosine is for --precision int8 or bf16"),
        ({"min_cosine": "1.5", "precision": "int8"}, "must be above 0 and below 1"),
        ({"min_cosine": "x", "precision": "int8"}, "not a number. Write 0.999"),
        ({"min_cosine": "0.9", "precision": "int8", "engine": "ray"}, "with --engine ray that is many"),
        ({"backend": "onyx"}, "Did you mean onnx"),
    ],
)
def test_what_cannot_be_together_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_config(tmp_path, tmp_path / "out", **options)  # type: ignore[arg-type]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only there OpenVINO changes it")
def test_openvino_leaves_the_stack_of_signal_handlers_alone(tmp_path: Path) -> None:
    openvino = import_openvino()
    from openvino import opset13 as ops

    inputs = ops.parameter([-1, 4], np.float32, name="input_ids")
    product = ops.matmul(inputs, ops.constant(np.ones((4, 4), np.float32)), False, False)
    openvino.save_model(openvino.Model([product], [inputs]), str(tmp_path / "graph.xml"))
    before = signal_stack()
    runtime = OpenVinoRuntime(tmp_path / "graph.xml", "float32")
    assert signal_stack() == before
    thread = threading.Thread(target=runtime.release)  # a stack of its own would be freed here, and still be in use
    thread.start()
    thread.join()
    assert signal_stack() == before


def signal_stack() -> tuple[int | None, int, int]:
    """Where this thread handles signals."""

    class Stack(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    found = Stack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found)) == 0
    return found.address, found.flags, found.size
