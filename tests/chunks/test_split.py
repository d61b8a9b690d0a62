"""Chunks that are too long become several, with ids of their own and a note of where they are from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import WriteChunks
from ultimate_embedder.chunks import LoadedChunks, find_collections, load_chunks, split_chunks
from ultimate_embedder.types import Segment


class Halves:
    """Splits texts of more than ten characters into parts of ten."""

    def overlong(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([len(text) > 10 for text in texts])

    def split(self, text: str) -> tuple[Segment, ...]:
        return tuple(Segment(start, min(start + 10, len(text))) for start in range(0, len(text), 10))


def loaded(chunks: Path, spool: Path) -> LoadedChunks:
    (collection,) = find_collections(chunks).collections
    return load_chunks(collection, spool / "loaded", lambda event: None)


def rows(chunks: LoadedChunks) -> list[tuple[str, str, dict[str, Any]]]:
    blocks = list(chunks.table.blocks())
    return [
        (name, text, json.loads(record))
        for block in blocks
        for name, text, record in zip(block.ids, block.texts, block.records, strict=True)
    ]


def test_segments_have_their_own_text_and_say_where_they_are_from(write_chunks: WriteChunks, tmp_path: Path) -> None:
    records = [{"id": "a", "text": "short", "page": 1}, {"id": "b", "text": "0123456789abcde", "page": 2}]
    split = split_chunks(loaded(write_chunks(records), tmp_path), tmp_path / "split", Halves())
    assert (split.split.chunks, split.split.segments, split.found, len(split.table)) == (1, 2, 2, 3)
    assert rows(split)[0] == ("a", "short", {"id": "a", "page": 1})
    first, second = rows(split)[1:]
    origin = {"chunk_id": "b", "segments": 2}
    assert first == (
        "b#1",
        "0123456789",
        {"id": "b", "page": 2, "split_from": {**origin, "segment": 1, "start": 0, "end": 10}},
    )
    assert second[:2] == ("b#2", "abcde")
    assert second[2]["split_from"] == {**origin, "segment": 2, "start": 10, "end": 15}
    assert not (tmp_path / "loaded").exists()


def test_an_id_that_another_chunk_has_is_not_given_to_a_segment(write_chunks: WriteChunks, tmp_path: Path) -> None:
    texts = {"a": "0123456789a", "a#2": "other", "a#": "0123456789b"}
    records = [{"id": name, "text": text} for name, text in texts.items()]
    split = split_chunks(loaded(write_chunks(records), tmp_path), tmp_path / "split", Halves())
    assert [name for name, _, _ in rows(split)] == ["a##1", "a##2", "a#2", "a###1", "a###2"]


def test_a_record_that_names_its_id_names_that_of_the_segment(write_chunks: WriteChunks, tmp_path: Path) -> None:
    earlier = {"chunk_id": "whole", "segment": 1, "segments": 2, "start": 0, "end": 15}
    records = [{"chunk_id": "b", "text": "0123456789abcde", "split_from": earlier}]
    split = split_chunks(loaded(write_chunks(records), tmp_path), tmp_path / "split", Halves())
    (_, _, record), _ = rows(split)
    assert record["chunk_id"] == "b#1"
    assert record["split_from"]["chunk_id"] == "b"
    assert record["split_from"]["split_from"] == earlier


def test_a_collection_in_which_all_fits_stays_as_it_is(write_chunks: WriteChunks, tmp_path: Path) -> None:
    before = loaded(write_chunks(["one", "two"]), tmp_path)
    assert split_chunks(before, tmp_path / "split", Halves()) is before
    assert not (tmp_path / "split").exists()
