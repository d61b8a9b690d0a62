"""What a hub says about a model, checked: whoever answers may be another than expected."""

from __future__ import annotations

import json
from typing import Any

from ultimate_embedder.models.hub_cache import HubFile, listed_file
from ultimate_embedder.models.paths import is_commit, shown

MOST_BYTES = 32 << 20  # of an answer; a model of 1,000 files has 0.3 MB
MOST_FILES = 20_000


class AnswerError(ValueError):
    """An answer that no hub gives, unless it is broken or hostile."""


def parse_model_info(body: bytes, wanted_commit: str | None = None) -> tuple[str, list[HubFile]]:
    """The commit and the files in a hub's description of a model."""
    described = _parse(body)
    if not isinstance(described, dict):
        raise AnswerError("its description of the model is not a JSON object")
    commit, siblings = described.get("sha"), described.get("siblings")
    if not isinstance(commit, str) or not is_commit(commit):
        raise AnswerError(f"'sha' is not a commit of 40 or 64 hexadecimal digits: {shown(commit)}")
    if wanted_commit and is_commit(wanted_commit) and commit != wanted_commit:
        raise AnswerError(f"it describes commit {commit}, and {wanted_commit} was asked for")
    if not isinstance(siblings, list):
        raise AnswerError(f"'siblings' is not a list of files: {shown(siblings)}")
    if len(siblings) > MOST_FILES:
        raise AnswerError(f"it lists {len(siblings)} files; a model has at most {MOST_FILES}")
    return commit, [_hub_file(entry) for entry in siblings]


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"))
    except ValueError as error:
        raise AnswerError(f"its description of the model is not JSON ({error})") from error
    except RecursionError as error:
        raise AnswerError("its description of the model is nested too deeply") from error


def _hub_file(entry: Any) -> HubFile:
    if not isinstance(entry, dict):
        raise AnswerError(f"a file is not described by a JSON object: {shown(entry)}")
    large = entry.get("lfs")
    if large is not None and not isinstance(large, dict):
        raise AnswerError(f"'lfs' of a file is not a JSON object: {shown(large)}")
    sha256 = large.get("sha256") or large.get("oid") if large else None
    try:
        return listed_file(entry.get("rfilename"), entry.get("size"), sha256, sha256 or entry.get("blobId"))
    except ValueError as error:
        raise AnswerError(str(error)) from error
