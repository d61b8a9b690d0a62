"""Names from a hub or from a model's files that become paths: they must stay below the folder they belong to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ultimate_embedder.errors import ModelError
from ultimate_embedder.names import name_problem, same_name

GIT_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # sha1, or sha256 in newer repositories
LONGEST_BYTES = 255  # of a file's name, in every file system
SHA256 = re.compile(r"[0-9a-f]{64}")


def existing_folder(name: str) -> Path | None:
    """What is at a path; None if nothing is, or no file can have such a name: it may be of a summary from elsewhere."""
    try:
        found = Path(name).expanduser()
        return found if found.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, the home of nobody, a NUL
        return None


def is_commit(word: str) -> bool:
    """Whether this can be the name of a commit, and so of a snapshot."""
    return GIT_HASH.fullmatch(word) is not None


def shown(value: object) -> str:
    """A value from outside, for a message: quoted, and not longer than a line."""
    try:
        text = repr(value)
    except RecursionError:
        return "a value that is nested too deeply"
    return text if len(text) <= 80 else f"{text[:77]}..."


def leaving_problem(name: str) -> str | None:
    """Why a relative name is no path below a folder, to follow the name in a sentence; None if it is one."""
    parts = re.split(r"[/\\]", name)
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        return "is an absolute path"
    if ".." in parts:
        return "leads out of its folder"
    if "\0" in name or not _can_be_encoded(name):
        return "contains characters that no file name has"
    return "is too long" if any(len(part.encode()) > LONGEST_BYTES for part in parts) else None


def _can_be_encoded(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def file_problem(name: str) -> str | None:
    """Why a name with slashes cannot be a file below a folder on every system; None if it can."""
    if problem := leaving_problem(name):
        return problem
    for part in name.split("/"):
        # a file may begin with a dot here, as .gitattributes does
        if part == "." or (problem := name_problem(part.removeprefix("."))) is not None:
            return problem or "is not a plain path"
        if ":" in part:
            return "contains :"
    return None


def collision(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that are one file on some disks, or of which one is a folder of the other; None if there are none."""
    files: dict[str, str] = {}
    for name in names:
        if (other := files.get(same_path(name))) is not None:
            return other, name
        files[same_path(name)] = name
    for name in files.values():
        for parent in Path(same_path(name)).parents:
            if other := files.get(parent.as_posix()):
                return other, name
    return None


def same_path(name: str) -> str:
    """Names for which this is equal are one file on a disk that ignores case."""
    return "/".join(map(same_name, name.split("/")))


def inside(folder: Path, name: str) -> Path:
    """The path of a file or folder below `folder`; `ModelError` if the name, or a link on its way, leads elsewhere.

    The file itself may be a link, as the files of a snapshot are links to blobs.
    """
    if problem := leaving_problem(name):
        raise ModelError(f"{folder}: the name {shown(name)} {problem}. Delete the folder, or copy the model again.")
    path = folder / name
    try:
        parent, real = path.parent.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:  # too long a name, or links in a circle
        raise ModelError(f"{folder}: the name {shown(name)} cannot be resolved ({error}).") from error
    if path != folder and not parent.is_relative_to(real):
        raise ModelError(f"{path} is reached through a link to {parent}, outside of {folder}. Delete that link.")
    return path


def require_own_folders(repo: Path, names: Iterable[str]) -> None:
    """Raise `ModelError` if one of these folders of a cached model is a link: files would be written elsewhere."""
    real = repo.resolve()
    for name in names:
        if (found := (repo / name).resolve()) != Path(os.path.normpath(real / name)):
            raise ModelError(f"{repo / name} is a link to {found}, outside of the cached model. Delete that link.")
