"""Models that another machine has sent: kept beside the cache by their digest, and used only if it is right."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.files import delete, sync_folder
from ultimate_embedder.models.paths import SHA256, file_problem
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.models.verify import ModelFile, digest_of, files_digest, list_files
from ultimate_embedder.types import ResolvedModel

FOLDER = "ultimate-embedder-shipped"
PIECE_BYTES = 8 << 20


def find_shipped(model: ResolvedModel, access: HubAccess) -> ResolvedModel | None:
    """A model with this digest that was sent to this machine; what is damaged is deleted, and None given."""
    folder = _folder(model.digest, access)
    if not folder.is_dir():
        return None
    if files_digest(folder) != model.digest:
        delete(folder)
        return None
    require_trust(model.spec, folder, access.trusted)
    return replace(model, path=folder, note="sent by the machine that started the run")


class ModelFiles:
    """Gives the files of a model of this machine, piece by piece."""

    def __init__(self, model: ResolvedModel) -> None:
        self._folder = model.path

    def files(self) -> Sequence[ModelFile]:
        """All files, with their checksums."""
        return list_files(self._folder)

    def piece(self, name: str, offset: int) -> bytes:
        """Some bytes of a file, as many as are sent at a time."""
        if problem := file_problem(name):
            raise ModelError(f"a file {name!r} was asked for, which {problem}.")
        with open(self._folder / name, "rb") as content:
            content.seek(offset)
            return content.read(PIECE_BYTES)


class Receiver:
    """Takes the pieces of one model, in any order of files; the model is there when `finish` was called."""

    def __init__(self, digest: str, files: Sequence[ModelFile], access: HubAccess) -> None:
        for file in files:
            if problem := file_problem(file.name):
                raise ModelError(f"a model was sent with a file {file.name!r}, which {problem}.")
        if digest_of(files) != digest:
            raise ModelError("a model was sent with a list of files that is not that of its digest.")
        self._digest = digest
        self._files = {file.name: file for file in files}
        self._target = _folder(digest, access)
        # of this process: another run may have the same model sent at the same time
        self._parts = self._target.with_name(f"{self._target.name}.arriving-{os.getpid()}")
        delete(self._parts)
        self._parts.mkdir(parents=True)

    def add(self, name: str, offset: int, content: bytes) -> None:
        """Write a piece; those of a file come in order."""
        file = self._files.get(name)
        if file is None or offset + len(content) > file.size_bytes:
            raise ModelError(f"a piece of {name!r} was sent that does not belong to the model.")
        path = self._parts / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if offset else "wb") as target:
            target.seek(offset)
            target.write(content)

    def finish(self) -> None:
        """Make it a model, if its digest is right."""
        found = files_digest(self._parts)
        if found != self._digest:
            delete(self._parts)
            raise ModelError(f"a model arrived damaged: its digest is {found[:12]} instead of {self._digest[:12]}.")
        delete(self._target)
        self._parts.rename(self._target)
        sync_folder(self._target.parent)


def _folder(digest: str, access: HubAccess) -> Path:
    if not SHA256.fullmatch(digest):
        raise ModelError(f"{digest!r} is no digest of a model.")
    return access.download_folder / FOLDER / digest
