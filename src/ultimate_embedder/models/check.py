"""Check the files of a model in the cache, in a Python package, or in a folder."""

from __future__ import annotations

import base64
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.config import HubAccess
from ultimate_embedder.files import file_sha256
from ultimate_embedder.models.hub_cache import problems_of
from ultimate_embedder.models.resolve import cached_snapshot, package_folder, resolve_model, spec_of
from ultimate_embedder.models.verify import has_checksums, verify_snapshot


@dataclass(frozen=True)
class ModelCheck:
    """The result of checking the files of a model in one location."""

    name: str
    path: Path
    problems: tuple[str, ...]
    has_checksums: bool = True
    """Whether there were checksums to compare the files with."""


def check_model(name: str, access: HubAccess) -> list[ModelCheck]:
    """Check every byte of a model, in each location on this machine; accepts the same names as `--models`."""
    spec = spec_of(name)
    if spec is None:
        model = resolve_model(name, access, to_load=False)
        return [ModelCheck(model.name, model.path, tuple(problems_of(model.path)), has_checksums=False)]
    found = []
    if spec.package and (folder := package_folder(spec.package)):
        found.append(ModelCheck(spec.key, folder, tuple(_package_problems(spec.package, folder))))
    if snapshot := cached_snapshot(spec, access):
        problems = dict.fromkeys(verify_snapshot(snapshot))
        found.append(ModelCheck(spec.key, snapshot.path, tuple(problems), has_checksums(snapshot)))
    return found


def _package_problems(package: str, folder: Path) -> Iterator[str]:
    """Compare a package's files with the checksums that its installation recorded."""
    yield from problems_of(folder)
    for file in importlib.metadata.distribution(package.replace("_", "-")).files or ():
        path = Path(str(file.locate()))
        if file.hash is None or file.hash.mode != "sha256" or not path.is_relative_to(folder):
            continue
        if not path.is_file():
            yield f"{path.relative_to(folder)} is missing"
        elif _recorded_digest(path) != file.hash.value:
            yield f"{path.relative_to(folder)} is damaged: its sha256 is not that of the installed package"


def _recorded_digest(path: Path) -> str:
    """A checksum in the format of the RECORD file of a Python package."""
    return base64.urlsafe_b64encode(bytes.fromhex(file_sha256(path))).rstrip(b"=").decode()
