"""Files that were found among chunk files and are none, in one sentence."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ultimate_embedder.config import DOCUMENTS, HOW_TO_CHUNK

MOST_COUNTED = 10_000
MOST_LISTED = 8


@dataclass
class LeftOut:
    """Files by the reason why they are left out; without a reason their name is not that of a chunk file."""

    files: list[tuple[Path, str | None]] = field(default_factory=list)

    def add(self, path: Path, reason: str | None = None) -> None:
        """Note a file, or a folder that is not entered."""
        if len(self.files) <= MOST_COUNTED:
            self.files.append((path, reason))

    def below(self, folders: Iterable[Path]) -> LeftOut:
        """Those in one of these folders."""
        wanted = list(folders)
        return LeftOut([(path, why) for path, why in self.files if any(path.is_relative_to(each) for each in wanted)])

    def sentence(self) -> str | None:
        """What was left out; None if nothing was."""
        by_reason: dict[str, list[str]] = {}
        for path, reason in self.files:
            if reason is not None:
                by_reason.setdefault(reason, []).append(path.name + (os.sep if path.is_dir() else ""))
        parts = [f"{first_few(names)} ({reason})" for reason, names in by_reason.items()]
        if others := [path for path, reason in self.files if reason is None]:
            parts.append(f"{count_suffixes(others)} (not chunk files)")
        return f"left out: {'; '.join(parts)}" if parts else None


def some_of(files: Iterable[Path]) -> list[Path]:
    """The files, if there are not too many to count."""
    return list(itertools.islice(files, MOST_COUNTED + 1))


def count_suffixes(files: Iterable[Path]) -> str:
    """How many files there are of each suffix, most first."""
    suffixes = Counter(file.suffix.lower() for file in files)
    more = " (not all were counted)" if suffixes.total() > MOST_COUNTED else ""
    by_count = sorted(suffixes.items(), key=lambda item: (-item[1], item[0] == "", item[0]))
    return first_few([f"{count:,} {suffix or 'without a suffix'}" for suffix, count in by_count]) + more


def how_to_chunk(files: Iterable[Path]) -> str:
    """What to do if documents are among the files; empty if there are none."""
    return f". {HOW_TO_CHUNK}" if any(file.suffix.lower() in DOCUMENTS for file in files) else ""


def first_few(words: list[str]) -> str:
    """Some of the words, and how many there are besides."""
    more = len(words) - MOST_LISTED
    return ", ".join(words[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
