"""What a run may be given: files, folders, patterns, standard input, or data that the caller has in memory."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ultimate_embedder.errors import UsageError

STDIN = Path("-")
DOCUMENTS = (".txt", ".md", ".markdown", ".rst", ".pdf", ".doc", ".docx", ".pptx", ".html", ".htm")
HOW_TO_CHUNK = (
    "Split documents into chunks first, for example with Docling, LangChain or Chonkie, and write one "
    '{"text": ...} per line to a .jsonl file; docs/chunks.md shows how.'
)
SPREADSHEETS = (".xlsx", ".xls", ".ods")
SPLITS = ("DatasetDict", "IterableDatasetDict")  # of Hugging Face datasets
MOST_KEYS = 3
MOST_NAMES = 100  # a longer list of strings is not looked up on the disk
LONGEST_PATH = 4096


class InMemory:
    """Chunks that the caller has in memory: an iterable, a table or a data frame."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __str__(self) -> str:
        kind = type(self.data)
        package = kind.__module__.partition(".")[0]
        return f"{kind.__name__} in memory" if package == "builtins" else f"{package} {kind.__name__} in memory"

    def __deepcopy__(self, memo: object) -> InMemory:
        return self  # options are copied for events, data is not


Input: TypeAlias = Path | InMemory


def read_inputs(value: Any, option: str) -> tuple[Input, ...]:
    """Check what a run was given. A string is a path; a list of strings is a list of texts."""
    if isinstance(value, str | os.PathLike):
        return _checked([Path(value)], as_text=value if isinstance(value, str) else None)
    if isinstance(value, list | tuple) and value and all(isinstance(each, os.PathLike) for each in value):
        return _checked([Path(each) for each in value])
    _check_in_memory(value)
    return (InMemory(value),)


def expand_pattern(path: Path) -> list[Path]:
    """The paths that a pattern such as `c/*.csv` stands for, in order; the path itself if it is none."""
    if not is_pattern(path):
        return [path]
    return [Path(found) for found in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - may be absolute


def is_pattern(path: Path) -> bool:
    """Whether a path is a pattern, and not the name of a file that has such characters."""
    return glob.has_magic(str(path)) and not os.path.lexists(path)


def document_problem(path: Path) -> str | None:
    """Why a file that was named cannot be a chunk file, to follow its name in a sentence; None if it can."""
    suffix = path.suffix.lower()
    if suffix in SPREADSHEETS:
        return "is a spreadsheet, not a chunk file. Save it as CSV."
    return f"is a document, not a chunk file. {HOW_TO_CHUNK}" if suffix in DOCUMENTS else None


def _checked(paths: list[Path], as_text: str | None = None) -> tuple[Path, ...]:
    """The paths, each once; raises one error for all that cannot be used."""
    problems = [problem for path in paths if (problem := _problem(path, as_text))]
    if problems:
        raise UsageError(" ".join(problems))
    return tuple(dict.fromkeys(paths))


def _problem(path: Path, as_text: str | None) -> str | None:
    if path == STDIN:
        return None
    try:
        pattern, found = is_pattern(path), any(each.exists() for each in expand_pattern(path))
    except (OSError, ValueError):  # too long for a path, or with a NUL
        pattern, found = False, False
    if found:
        problem = document_problem(path) if path.is_file() else None
        return f"{path} {problem}" if problem else None
    if as_text is not None and _looks_like_text(as_text):
        return f"{as_text[:60]!r} is not a path that exists. If it is a text, put it in a list: embed([text], ...)."
    if pattern:
        return f"no file or folder matches {path}."
    return f"{path} does not exist. Give a chunk file, or the folder that holds your chunk files."


def _looks_like_text(given: str) -> bool:
    return len(given) > LONGEST_PATH or "\n" in given or len(given.split()) > 2


def _check_in_memory(value: Any) -> None:
    """Raise a `UsageError` for what can be told from the type alone."""
    if isinstance(value, Mapping):
        raise UsageError(_about_mapping(value))
    # a query of polars that was not run yet cannot be iterated
    lazy = type(value).__module__.startswith("polars.")
    readable = isinstance(value, Iterable) or hasattr(value, "__arrow_c_stream__") or lazy
    if isinstance(value, bytes | bytearray) or not readable:
        kind = "None" if value is None else f"of the type {type(value).__name__}"
        raise UsageError(
            f"chunks is {kind}. Give a path, a list of texts or dicts, a DataFrame, an Arrow table or a Dataset."
        )
    if isinstance(value, list | tuple):
        _check_list(value)


def _about_mapping(value: Mapping[Any, Any]) -> str:
    keys = [str(key) for key in itertools.islice(value, MOST_KEYS)]
    if type(value).__name__ in SPLITS:
        return f"chunks has several splits ({', '.join(keys)}). Give one of them, such as chunks[{keys[0]!r}]."
    return f"chunks is a dict with the keys {', '.join(keys)}. Give a list of dicts, one per chunk, or a DataFrame."


def _check_list(value: list[Any] | tuple[Any, ...]) -> None:
    if not value:
        raise UsageError("chunks is an empty list. Give at least one text or dict.")
    if any(isinstance(each, os.PathLike) for each in value):
        raise UsageError("chunks mixes paths and other items. Give either: strings in a list are texts.")
    short = len(value) <= MOST_NAMES and all(isinstance(each, str) and len(each) < LONGEST_PATH for each in value)
    if short and all("\0" not in each and os.path.exists(each) for each in value):  # noqa: PTH110 - it never raises
        raise UsageError(
            f"chunks is a list of strings, which are texts, but {value[0]} is a file or folder. To embed files, give "
            f"Path objects: [Path({value[0]!r}), ...]."
        )
