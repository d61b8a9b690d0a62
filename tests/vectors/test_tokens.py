"""Token ids on disk, for models that tokenise alike."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import WriteChunks
from tests.support.damage import Damage, damages, flip_bit
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.api import run_and_report
from ultimate_embedder.models import Encoder, TokenBatch, TokenizedTexts
from ultimate_embedder.options import make_config
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.session import Session, open_session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.summary import CollectionSummary
from ultimate_embedder.vectors import TokenLimits, TokenStore, token_problems

KEYS = np.array([[1, 10], [2, 20], [3, 30]], np.uint64)
ROWS = [np.array([5, 6, 7]), np.array([8]), np.array([9, 9])]


def test_what_is_kept_comes_back_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens")
    store.append(KEYS[:2], ROWS[:2], np.array([0, 7]))
    store.append(KEYS[2:], ROWS[2:], np.array([0]))
    for opened in (store, TokenStore(tmp_path / "tokens")):
        rows, over = opened.read(KEYS[[2, 1, 0]])
        assert [row.tolist() for row in rows] == [[9, 9], [8], [5, 6, 7]]
        assert over.tolist() == [0, 7, 0]
        assert opened.holds(np.array([[2, 20], [2, 21]], np.uint64)).tolist() == [True, False]


def test_it_can_be_removed(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens")
    store.append(KEYS, ROWS, np.zeros(3, int))
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


@dataclass
class Stopped:
    """A run that was stopped in its second pass: the token ids of its first are on disk."""

    chunks: Path
    output: Path
    models: str
    session: Session
    tokenized: Counter[str]

    def run(self, **options: Any) -> CollectionSummary:
        config = make_config(
            self.chunks, self.output, models=self.models, mode="exclusive", devices="cpu", exports="npy", **options
        )
        return run_and_report(config, quiet=True, session=self.session).collections[0]

    def go_on(self, **options: Any) -> CollectionSummary:
        collection = self.run(**options)
        assert collection.status == "completed", collection.error
        return collection

    @property
    def files(self) -> list[Path]:
        return sorted(self.output.glob("docs/store/tokens-*/*"))

    @property
    def vectors(self) -> np.ndarray:
        return np.asarray(np.load(CollectionOutput(self.output / "docs").embeddings_of("second")))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    """The run itself, to be copied; its session has both models, for all runs that go on with it."""
    root = tmp_path_factory.mktemp("interrupted")
    (root / "chunks" / "docs").mkdir(parents=True)
    (root / "chunks" / "docs" / "a_chunks.json").write_text(json.dumps([f"text {number}" for number in range(60)]))
    second = shutil.copytree(tiny_model("bert", hidden=48, layers=1), root / "second")
    models = f"{tiny_model('bert', hidden=32, layers=1)},{second}"
    config = make_config(root / "chunks", root / "out", models=models, devices="cpu")
    session = open_session(config, lambda event: None, StopSwitch())
    for plan in session.passes_for():
        session.load(plan)  # loading may run the model, to compare its layers
    tokenized: Counter[str] = Counter()
    tokenize, forward = Encoder.tokenize, Encoder.forward

    def counting(self: Encoder, texts: Sequence[str]) -> TokenizedTexts:
        tokenized.update(text for text in texts if text.startswith("text "))
        return tokenize(self, texts)

    def failing(self: Encoder, batch: TokenBatch) -> torch.Tensor:
        if self.name == "second":
            raise RuntimeError("the power went")
        return forward(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "tokenize", counting)
        stopped = Stopped(root / "chunks", root / "out", models, session, tokenized)
        with pytest.MonkeyPatch.context() as failure:
            failure.setattr(Encoder, "forward", failing)
            assert stopped.run().status == "failed"
        yield stopped


@pytest.fixture(scope="module")
def undisturbed(interrupted: Stopped, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The vectors of a run that went on with undamaged token ids."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    again = replace(interrupted, output=Path(shutil.copytree(interrupted.output, output)))
    again.go_on()
    return again.vectors


@pytest.fixture
def stopped(interrupted: Stopped, tmp_path: Path) -> Stopped:
    interrupted.tokenized.clear()
    return replace(interrupted, output=Path(shutil.copytree(interrupted.output, tmp_path / "out")))


def test_a_run_that_was_stopped_in_its_second_pass_goes_on_with_the_tokens_of_its_first(stopped: Stopped) -> None:
    collection = stopped.go_on()
    assert [each.encoded_texts for each in collection.passes] == [0, 60]
    assert not stopped.tokenized
    assert not stopped.files


def zero(path: Path, start: float, stop: float) -> None:
    content = path.read_bytes()
    first, last = int(len(content) * start), int(len(content) * stop)
    path.write_bytes(content[:first] + bytes(last - first) + content[last:])


# each of these gave wrong vectors, or none, when token ids had no checksum
TOKEN_DAMAGE: dict[str, Damage] = {
    "the end is zero": lambda path: zero(path, 0.75, 1.0),
    "a part is zero": lambda path: zero(path, 0.5, 0.6),
    "the beginning is zero": lambda path: zero(path, 0.0, 0.1),
    "a bit of an id": lambda path: flip_bit(path, int(path.stat().st_size * 0.7)),
    "a bit of a key": lambda path: flip_bit(path, int(path.stat().st_size * 0.3)),
    **{words: damages()[words] for words in ("first half", "empty", "a folder")},
}


@pytest.mark.parametrize("damage", [pytest.param(damage, id=words) for words, damage in TOKEN_DAMAGE.items()])
def test_damaged_token_ids_give_no_wrong_vectors(stopped: Stopped, undisturbed: np.ndarray, damage: Damage) -> None:
    (path,) = stopped.files
    damage(path)
    (problem,) = token_problems(stopped.output / "docs" / "store")
    assert str(path) in problem
    collection = stopped.go_on()
    assert collection.warnings == [f"{problem}; its texts are tokenised again"]
    assert np.array_equal(stopped.vectors, undisturbed)
    assert not stopped.files


def test_fresh_forgets_token_ids(stopped: Stopped) -> None:
    collection = stopped.go_on(fresh=True)
    assert [each.encoded_texts for each in collection.passes] == [60, 60]
    assert set(stopped.tokenized.values()) == {1}


def test_token_ids_that_an_earlier_version_left_are_made_again(stopped: Stopped) -> None:
    (path,) = stopped.files
    path.write_bytes(path.read_bytes()[64:])  # the same, without the header
    (warning,) = stopped.go_on().warnings
    assert "its checksum does not match, or an earlier version wrote it" in warning


def test_what_is_left_is_removed_by_a_run_that_has_nothing_to_tokenise(stopped: Stopped) -> None:
    shutil.copytree(stopped.files[0].parent, stopped.output / "kept")
    stopped.go_on()
    (stopped.output / "kept").rename(stopped.output / "docs" / "store" / "tokens-0123456789abcdef")
    stopped.go_on()
    assert not stopped.files


# what has the right checksum, and cannot be used


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([[5, 6], [100], [1]], "outside of the vocabulary of 100 tokens"),
        ([[5, -1], [7], [1]], "below 0"),
        ([[1, 2, 3, 4, 5], [7], [1]], "more than 4 tokens"),
    ],
)
def test_ids_that_no_model_can_read_are_dropped(tmp_path: Path, rows: list[list[int]], problem: str) -> None:
    folder = tmp_path / "tokens"
    TokenStore(folder).append(KEYS, [np.array(row) for row in rows], np.zeros(3, int))
    opened = TokenStore(folder, TokenLimits(vocabulary=100, max_tokens=4))
    assert problem in opened.notes[0]
    assert not opened.holds(KEYS).any()
    assert not list(folder.glob("tokens-*"))


def test_token_ids_of_another_tokenizer_are_dropped(tmp_path: Path) -> None:
    TokenStore(tmp_path / "tokens-a").append(KEYS, ROWS, np.zeros(3, int))
    (tmp_path / "tokens-a").rename(tmp_path / "tokens-b")
    assert not TokenStore(tmp_path / "tokens-b").holds(KEYS).any()


def test_tokens_that_a_crash_has_cut_short_are_dropped(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "tokens")
    store.append(KEYS[:1], ROWS[:1], np.array([False]))
    (tmp_path / "tokens" / "tokens-00001.arrow").write_bytes(b"ARROW1")
    again = TokenStore(tmp_path / "tokens")
    assert again.holds(KEYS).tolist() == [True, False, False]
    again.append(KEYS[1:], ROWS[1:], np.zeros(2, bool))
    assert TokenStore(tmp_path / "tokens").holds(KEYS).all()
