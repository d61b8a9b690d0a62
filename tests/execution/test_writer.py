"""The thread that stores vectors: nothing is lost, and its errors come out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ultimate_embedder.execution.writer import MOST_WAITING, VectorWriter
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors import VectorStore

IDENTITY = PassIdentity("m", "r", "d", "float32", None, None, None)


def rows(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.array([[number, number]], np.uint64), np.full((1, 4), number, np.float32), np.array([False])


def store_many(store: VectorStore) -> None:
    with VectorWriter(store) as writer:
        for number in range(5 * MOST_WAITING):
            writer.append(*rows(number))


def test_everything_is_on_disk_when_it_ends(tmp_path: Path) -> None:
    store_many(VectorStore(tmp_path, IDENTITY))
    again = VectorStore(tmp_path, IDENTITY)
    keys = np.array([[number, number] for number in range(5 * MOST_WAITING)], np.uint64)
    assert again.read(keys)[:, 0].tolist() == list(range(5 * MOST_WAITING))


def test_an_error_of_the_disk_comes_out(tmp_path: Path) -> None:
    store = VectorStore(tmp_path / "store", IDENTITY)
    (tmp_path / "store").write_text("in the way")
    with pytest.raises(NotADirectoryError):
        store_many(store)


def test_an_error_of_the_work_is_not_hidden_and_what_was_done_is_kept(tmp_path: Path) -> None:
    def work() -> None:
        with VectorWriter(VectorStore(tmp_path, IDENTITY)) as writer:
            writer.append(*rows(7))
            raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        work()
    assert VectorStore(tmp_path, IDENTITY).holds(rows(7)[0]).all()
