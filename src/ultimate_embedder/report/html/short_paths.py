"""A summary without the folders of the machine, for a page that is sent around: of each path only its name is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from ultimate_embedder.summary import RunSummary

FOLDER = "…"
# an absolute path of several parts, in a text; parts with spaces are found where their folder is known
_POSIX = re.compile(r"(?<![\w.:/…])/(?:[^\s/'\",;:()]+/)+(?=[^\s/'\",;:()])")
_WINDOWS = re.compile(r"(?<!\w)[A-Za-z]:\\(?:[^\s\\'\",;:()]+\\)+(?=[^\s\\'\",;:()])")


def with_short_paths(summary: RunSummary) -> RunSummary:
    """The same summary; `/home/me/chunks/a.json` has become `…/a.json` wherever it occurs."""
    folders = sorted(_folders(summary), key=len, reverse=True)

    def shorten(text: str) -> str:
        for folder in folders:
            text = text.replace(folder, f"{FOLDER}/")
        return _WINDOWS.sub(lambda _: f"{FOLDER}/", _POSIX.sub(f"{FOLDER}/", text))

    return RunSummary.model_validate(_changed(summary.model_dump(mode="json"), shorten))


def _folders(summary: RunSummary) -> set[str]:
    """The folders above all that the run was given, and above its output, with the separator at their end."""
    given = [summary.output, summary.chunks, *(summary.options.chunks if summary.options else ())]
    given += [model.path for each in summary.collections for model in each.models]
    found = set()
    for name in given:
        for kind, separator in ((PurePosixPath, "/"), (PureWindowsPath, "\\")):
            path = kind(name)
            if path.is_absolute() and len(path.parts) > 2:
                found.add(f"{path.parent}{separator}")
    return found


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(each, change) for each in value]
    return {key: _changed(each, change) for key, each in value.items()} if isinstance(value, dict) else value
