"""Token ids on disk, for models that tokenise alike."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.models import Encoder, TokenBatch, TokenizedTexts
from ultimate_embedder.vectors import TokenStore

KEYS = np.array([[1, 10], [2, 20], [3, 30]], np.uint64)
ROWS = [np.array([5, 6, 7]), np.array([8]), np.array([9, 9])]


def test_what_is_kept_comes_back_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens")
    store.append(KEYS[:2], ROWS[:2], np.array([False, True]))
    store.append(KEYS[2:], ROWS[2:], np.array([False]))
    for opened in (store, TokenStore(tmp_path / "tokens")):
        rows, truncated = opened.read(KEYS[[2, 1, 0]])
        assert [row.tolist() for row in rows] == [[9, 9], [8], [5, 6, 7]]
        assert truncated.tolist() == [False, True, False]
        assert opened.holds(np.array([[2, 20], [2, 21]], np.uint64)).tolist() == [True, False]


def test_it_can_be_removed(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens")
    store.append(KEYS, ROWS, np.zeros(3, bool))
    store.remove()
    assert not (tmp_path / "tokens").exists()


@pytest.mark.parametrize("mode", ["exclusive", "sequential"])
def test_models_that_tokenise_alike_tokenise_each_text_once(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    second = tmp_path / "second"
    shutil.copytree(tiny_model("bert", hidden=48), second)
    texts = [f"text {number} " + "word " * (number % 9) for number in range(60)]
    tokenized: Counter[str] = Counter()
    tokenize = Encoder.tokenize

    def counting(self: Encoder, texts: Sequence[str]) -> TokenizedTexts:
        tokenized.update(text for text in texts if text.startswith("text "))
        return tokenize(self, texts)

    monkeypatch.setattr(Encoder, "tokenize", counting)
    chunks, output = write_chunks(texts), tmp_path / "out"
    models = [str(tiny_model("bert")), str(second)]
    summary = embed(chunks, output, models=models, mode=mode, devices="cpu", exports="npy", quiet=True)
    assert [each.encoded_texts for each in summary.collections[0].passes] == [60, 60]
    assert set(tokenized.values()) == {1}
    assert not list((output / "docs" / "store").glob("tokens-*"))


def test_a_run_that_was_stopped_in_its_second_pass_goes_on_with_the_tokens_of_its_first(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = tmp_path / "second"
    shutil.copytree(tiny_model("bert", hidden=48), second)
    tokenized: Counter[str] = Counter()
    tokenize, forward = Encoder.tokenize, Encoder.forward

    def counting(self: Encoder, texts: Sequence[str]) -> TokenizedTexts:
        tokenized.update(text for text in texts if text.startswith("text "))
        return tokenize(self, texts)

    def failing(self: Encoder, batch: TokenBatch) -> torch.Tensor:
        if self.name == "second":
            raise RuntimeError("the power went")
        return forward(self, batch)

    monkeypatch.setattr(Encoder, "tokenize", counting)
    chunks, output = write_chunks([f"text {number}" for number in range(60)]), tmp_path / "out"
    models = [str(tiny_model("bert")), str(second)]
    options: dict[str, Any] = {"models": models, "mode": "exclusive", "devices": "cpu", "exports": "npy"}
    with monkeypatch.context() as failure:
        failure.setattr(Encoder, "forward", failing)
        (collection,) = embed(chunks, output, quiet=True, **options).collections
    assert collection.status == "failed"
    (collection,) = embed(chunks, output, quiet=True, **options).collections
    assert [each.encoded_texts for each in collection.passes] == [0, 60]
    assert set(tokenized.values()) == {1}
    assert not list((output / "docs" / "store").glob("tokens-*"))


def test_tokens_that_a_crash_has_cut_short_are_dropped(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens")
    store.append(KEYS[:1], ROWS[:1], np.array([False]))
    (tmp_path / "tokens" / "tokens-00001.arrow").write_bytes(b"ARROW1")
    again = TokenStore(tmp_path / "tokens")
    assert again.holds(KEYS).tolist() == [True, False, False]
    again.append(KEYS[1:], ROWS[1:], np.zeros(2, bool))
    assert TokenStore(tmp_path / "tokens").holds(KEYS).all()
