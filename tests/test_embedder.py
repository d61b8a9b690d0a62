"""`Embedder`: the vectors of `embed`, without files."""

from __future__ import annotations

import inspect
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.conftest import WriteChunks
from tests.support.graphs import have_graph
from tests.support.tiny_models import tiny_model
from ultimate_embedder import Embedder, embed, open_output
from ultimate_embedder.errors import NoVectorsError, UltimateEmbedderError, UsageError
from ultimate_embedder.models import Encoder, TokenizedTexts
from ultimate_embedder.options import make_config

TEXTS = ["A short one.", "Ünïcode 表 🙂", *(f"text number {number} " * (number % 7 + 1) for number in range(40))]
ONE, OTHER = (str(tiny_model(architecture, prompts=True)) for architecture in ("bert", "mpnet"))
NAMES = ("tiny-bert", "tiny-mpnet")


@pytest.fixture(scope="module")
def one() -> Iterator[Embedder]:
    with Embedder(ONE, devices="cpu") as embedder:
        yield embedder


@pytest.fixture(scope="module")
def both() -> Iterator[Embedder]:
    with Embedder({ONE: 0.7, OTHER: 0.3}, devices="cpu") as embedder:
        yield embedder


def array(vectors: Any) -> np.ndarray:
    assert isinstance(vectors, np.ndarray)
    assert vectors.dtype == np.float32
    return vectors


def embedded(write_chunks: WriteChunks, out: Path, **options: Any) -> np.ndarray:
    embed(write_chunks(TEXTS), out, devices="cpu", exports="npy", quiet=True, **options)
    return open_output(out)["docs"].vectors()


def test_vectors_are_those_of_a_run(one: Embedder, write_chunks: WriteChunks, tmp_path: Path) -> None:
    stored = embedded(write_chunks, tmp_path / "out", models=ONE)
    np.testing.assert_allclose(array(one.encode(TEXTS)), stored, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"fusion": "concat"}, {"fusion": "weighted_average"}, {"dim": 32, "max_tokens": 9}]
)
def test_fused_and_shortened_vectors_are_those_of_a_run(
    options: dict[str, Any], write_chunks: WriteChunks, tmp_path: Path
) -> None:
    options = {"models": [ONE, OTHER] if "fusion" in options else ONE, **options}
    stored = embedded(write_chunks, tmp_path / "out", **options)
    with warnings.catch_warnings(), Embedder(devices=["cpu"], **options) as embedder:
        warnings.simplefilter("ignore")  # of truncated texts
        np.testing.assert_allclose(array(embedder.encode(TEXTS)), stored, atol=1e-6)
        assert embedder.dim == stored.shape[1]


def test_several_models_give_named_arrays(both: Embedder) -> None:
    vectors = both.encode(TEXTS)
    assert isinstance(vectors, dict)
    assert {name: each.shape for name, each in vectors.items()} == dict.fromkeys(NAMES, (len(TEXTS), 64))
    single = both.encode(TEXTS[0])
    assert isinstance(single, dict)
    assert {name: each.shape for name, each in single.items()} == dict.fromkeys(NAMES, (64,))
    assert both.dim == dict.fromkeys(NAMES, 64)
    assert both.models == NAMES


@pytest.mark.parametrize("backend", ["onnx"])
def test_another_runtime_computes_the_same(one: Embedder, backend: str) -> None:
    have_graph(ONE, backend, int8=False)
    with Embedder(ONE, devices="cpu", backend=backend) as other:
        np.testing.assert_allclose(array(other.encode(TEXTS[:5])), array(one.encode(TEXTS[:5])), atol=1e-5)


@pytest.mark.filterwarnings("ignore:tiny-bert loses much in int8")
def test_what_int8_costs_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    have_graph(ONE, "onnx", int8=True)
    with Embedder(ONE, devices="cpu", precision="int8", backend="onnx") as embedder:
        first = array(embedder.encode(TEXTS))
        monkeypatch.setattr("ultimate_embedder.execution.precision_check._measure", None)  # fails if it is called
        np.testing.assert_allclose(array(embedder.encode(TEXTS)), first, atol=1e-6)


def test_queries_in_int8_are_compared_with_queries_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultimate_embedder.vectors.agreement.POOR_MEAN_COSINE", 1.0)  # with VNNI little is lost
    have_graph(ONE, "onnx", int8=True)
    with Embedder(ONE, devices="cpu", precision="int8", backend="onnx") as embedder:
        with pytest.warns(UserWarning, match="tiny-bert loses much in int8") as caught:
            embedder.encode_queries(TEXTS)
        cosine = float(re.findall(r"cosine ([\d.]+)", str(caught[0].message))[0])
        with Embedder(ONE, devices="cpu") as exact, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pairs = array(embedder.encode_queries(TEXTS)) * array(exact.encode_queries(TEXTS))
    assert cosine == pytest.approx(pairs.sum(1).mean(), abs=0.005)


def test_documents_and_queries_have_the_prompts_of_the_model(one: Embedder) -> None:
    reference = SentenceTransformer(ONE, device="cpu")
    np.testing.assert_allclose(array(one.encode(TEXTS)), reference.encode_document(TEXTS), atol=1e-5)
    np.testing.assert_allclose(array(one.encode_queries(TEXTS)), reference.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(array(one.encode(TEXTS)), reference.encode_document(TEXTS), atol=1e-5)


def test_one_string_gives_one_vector(one: Embedder) -> None:
    assert array(one.encode("text")).shape == (64,)
    np.testing.assert_allclose(array(one.encode("text")), array(one.encode(["text"]))[0], atol=1e-6)


def test_no_texts_give_an_empty_array_of_the_right_width(one: Embedder, both: Embedder) -> None:
    assert array(one.encode([])).shape == array(one.encode_queries([])).shape == (0, 64)
    empty = both.encode([])
    assert isinstance(empty, dict)
    assert {name: each.shape for name, each in empty.items()} == dict.fromkeys(NAMES, (0, 64))


def test_equal_texts_are_encoded_once(one: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    tokenize = Encoder.tokenize

    def listen(self: Encoder, texts: Sequence[str]) -> TokenizedTexts:
        seen.extend(texts)
        return tokenize(self, texts)

    monkeypatch.setattr(Encoder, "tokenize", listen)
    vectors = array(one.encode(["a", "b", "a", "a"]))
    assert sorted(seen) == ["a", "b"]
    assert (vectors[[0, 2, 3]] == vectors[0]).all()
    assert not np.allclose(vectors[0], vectors[1])


@pytest.mark.parametrize("texts", [("a", "b"), (text for text in "ab"), np.array(["a", "b"])])
def test_texts_may_be_anything_with_an_order(one: Embedder, texts: Any) -> None:
    assert array(one.encode(texts)).shape == (2, 64)


def test_a_column_of_a_data_frame_is_a_list_of_texts_and_the_frame_is_not(one: Embedder) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", "b"]})
    assert array(one.encode(frame["text"])).shape == (2, 64)
    with pytest.raises(UsageError, match=r"texts is of type DataFrame\. .* one of its columns: frame\['text'\]"):
        one.encode(frame)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts is None. Give a string, or a list of strings."),
        (3, "texts is of type int. Give a string, or a list of strings."),
        (b"a", "texts is of type bytes. Give a string, or a list of strings."),
        ({"a": 1}, "texts is of type dict. Give a string, or a list of strings."),
        ({"a", "b"}, "texts is of type set. Give a string, or a list of strings."),
        (["a", None], "texts[1] is None: every text must be a string that is not empty."),
        (["a", 2.5], "texts[1] is of type float: every text must be a string that is not empty."),
        (["a", b"b"], "texts[1] is bytes: every text must be a string that is not empty. Decode it: text.decode()."),
        (["a", ["b"]], "texts[1] is of type list: every text must be a string that is not empty."),
        ("", "texts[0] is empty: every text must be a string that is not empty. Leave it out."),
        (["a", " \n"], "texts[1] is only whitespace: every text must be a string that is not empty. Leave it out."),
        (
            ["a", "b", "c \ud800"],
            "texts[2] is not valid Unicode: at character 2 is half a surrogate pair ('\\ud800'). "
            "Replace it: text.encode(errors='replace').decode().",
        ),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(one: Embedder, texts: Any, message: str) -> None:
    for encode in (one.encode, one.encode_queries):
        with pytest.raises(UsageError) as caught:
            encode(texts)
        assert str(caught.value) == message


def test_texts_without_a_usable_vector_are_named(one: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Encoder.forward

    def fail(self: Encoder, batch: Any) -> Any:
        return forward(self, batch) * float("nan")

    monkeypatch.setattr(Encoder, "forward", fail)
    with pytest.raises(NoVectorsError) as caught:
        one.encode(["a", "b"])
    expected = "tiny-bert gave no usable vector (not finite, or of no length) for texts[0] ('a'), texts[1] ('b'). "
    assert str(caught.value) == f"{expected}Leave them out, or use another model or --precision fp32."


def test_truncated_texts_are_warned_of_at_the_line_of_the_caller() -> None:
    with Embedder(ONE, devices="cpu", max_tokens=32) as embedder:
        with pytest.warns(UserWarning, match="1 of 2 texts are longer than 32 tokens, the limit of tiny-b") as caught:
            embedder.encode(["a", "a" * 300])
        assert caught[0].filename == __file__
        assert "overlong='pool'" in str(caught[0].message)
        with pytest.warns(UserWarning, match=r"not in their vectors\.$"):  # queries are never pooled
            embedder.encode_queries("a" * 300)


def test_calls_of_several_threads_wait_for_each_other(one: Embedder) -> None:
    expected = array(one.encode(TEXTS))
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(array(one.encode(TEXTS)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    for each in found:
        np.testing.assert_allclose(each, expected, atol=1e-6)


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with Embedder([ONE, OTHER], devices="cpu") as embedder:
        embedder.encode(TEXTS)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_embedder_says_so() -> None:
    embedder = Embedder(ONE, devices="cpu")
    assert repr(embedder) == "<Embedder: tiny-bert; 64 dims>"
    embedder.close()
    embedder.close()
    assert repr(embedder) == "<Embedder: tiny-bert; 64 dims; closed>"
    with pytest.raises(UsageError, match="this Embedder is closed"):
        embedder.encode("a")


def test_progress_is_shown_only_if_it_is_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    with Embedder(ONE, devices="cpu") as quiet:
        quiet.encode("a")
    assert capfd.readouterr() == ("", "")
    with Embedder(ONE, devices="cpu", progress=True) as loud:
        loud.encode("a")
    assert "texts · tiny-bert on cpu: 1 of 1" in capfd.readouterr().err


def test_options_are_those_of_embed() -> None:
    options = inspect.signature(make_config).parameters
    for name, parameter in inspect.signature(Embedder).parameters.items():
        if name != "progress":
            assert parameter.default == options[name].default, name
            assert f"\n  {name}: " in (Embedder.__doc__ or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": 3}, "--models 3: not text or a list of texts or a dictionary of numbers."),
        ({"models": "no-such-model"}, "no-such-model"),
        ({"devices": 0}, "--devices 0: not text or a list of texts."),
        ({"fusion": "sum"}, "--fusion sum: not one of named, concat, weighted_average."),
        ({"models": [ONE, ONE]}, "--models names tiny-bert twice"),
        ({"dim": 65}, "--dim 65"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UltimateEmbedderError, match=re.escape(message)):
        Embedder(**{"models": ONE, "devices": "cpu", **options})
