"""Folders of a known layout: what in them are chunks, and what belongs to them but is none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ultimate_embedder.chunks.formats import uncompressed_name

BEIR_CORPUS = "corpus.jsonl"
BEIR_OTHERS = ("queries.jsonl", "qrels", "qrels*.tsv")
BEIR = "BEIR queries and judgements"
DATASET_FILES = ("dataset_info.json", "state.json")
SPLITS_FILE = "dataset_dict.json"
DATASET_DATA = "data-*.arrow"
NOT_OF_DATASET = "not part of the saved dataset"


@dataclass(frozen=True)
class Layout:
    """What of a folder is to be looked at, and what is left out, with the reason."""

    entries: list[Path]
    left_out: list[tuple[Path, str]]


def is_dataset(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of Hugging Face datasets: a dataset, or several splits of one."""
    # os.path: unlike Path.is_file it does not raise for a folder without permission
    has = {name: os.path.isfile(folder / name) for name in (*DATASET_FILES, SPLITS_FILE)}  # noqa: PTH113
    return has[SPLITS_FILE] or all(has[name] for name in DATASET_FILES)


def known_layout(folder: Path, entries: list[Path]) -> Layout:
    """The entries of a folder that may be chunk files, or hold some."""
    if is_dataset(folder):
        return _dataset(entries)
    if any(uncompressed_name(entry.name) == BEIR_CORPUS for entry in entries):
        others = [entry for entry in entries if _is_one_of(entry, BEIR_OTHERS)]
        return Layout([entry for entry in entries if entry not in others], [(entry, BEIR) for entry in sorted(others)])
    return Layout(entries, [])


def _dataset(entries: list[Path]) -> Layout:
    """The data files: `cache-*.arrow` beside them are what was computed from them."""
    ours = [entry for entry in entries if entry.name not in (*DATASET_FILES, SPLITS_FILE)]
    caches = [entry for entry in ours if entry.suffix == ".arrow" and not _is_one_of(entry, (DATASET_DATA,))]
    kept = [entry for entry in ours if entry not in caches]
    return Layout(kept, [(entry, NOT_OF_DATASET) for entry in sorted(caches)])


def _is_one_of(entry: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(uncompressed_name(entry.name), pattern) for pattern in patterns)
