"""The JSON files of a model, read with care: they come from outside, and say what is loaded from where."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import ModelError
from ultimate_embedder.models.paths import inside, shown

MOST_BYTES = 64 << 20  # of a file; vocabularies are not read here
MODULES = "modules.json"


@dataclass(frozen=True)
class ModuleEntry:
    """One module of a model in sentence-transformers' layout: the name of its class, and its folder."""

    type: str
    path: str


def read_json(path: Path) -> Any:
    """What a JSON file says; None if there is no such file, `ModelError` if it is damaged."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise damaged(path, "it is not a file")  # a pipe would be waited for
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise damaged(path, f"it has more than {MOST_BYTES >> 20} MiB")
        return json.loads(content.decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    except RecursionError as error:
        raise damaged(path, "its values are nested too deeply") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file."""
    found = read_json(path)
    if found is not None and not isinstance(found, dict):
        raise damaged(path, "it is not a JSON object")
    return found or {}


def read_modules(folder: Path) -> list[ModuleEntry]:
    """The modules in a model's modules.json; empty if it has none. Their folders are below that of the model."""
    path = folder / MODULES
    found = read_json(path)
    if found is None:
        return []
    if not isinstance(found, list):
        raise damaged(path, "it is not a list of modules")
    return [_module(folder, path, entry) for entry in found]


def _module(folder: Path, path: Path, entry: Any) -> ModuleEntry:
    if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
        raise damaged(path, f"{shown(entry)} is not a module with a type")
    subfolder = entry.get("path", "")
    if not isinstance(subfolder, str):
        raise damaged(path, f"{shown(subfolder)} is not the path of a module")
    module_folder(folder, path, subfolder)
    return ModuleEntry(entry["type"], subfolder)


def module_folder(folder: Path, named_in: Path, subfolder: str) -> Path:
    """The folder of a module; `ModelError` if it is not below that of the model."""
    try:
        found = inside(folder, subfolder)
        if found.resolve().is_relative_to(folder.resolve()):
            return found
    except (ModelError, OSError, RuntimeError, ValueError) as error:
        raise damaged(named_in, f"the folder {shown(subfolder)} of a module is not below the model's") from error
    raise damaged(named_in, f"the folder {shown(subfolder)} of a module is a link that leaves the model's folder")


def damaged(path: Path, why: object) -> ModelError:
    """The error about a file of a model that cannot be used."""
    return ModelError(f"{path} is damaged ({why}). Download or copy the model again.")
