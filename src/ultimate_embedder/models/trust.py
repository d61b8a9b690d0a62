"""Whether the files of a model may be loaded: they run no code and are no pickles, or the user trusts the model.

Libraries differ in what they trust: sentence-transformers before 6.0 runs the code of every local folder, and all
models are loaded from one. So it is checked here, on every version, before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ultimate_embedder.errors import ModelError
from ultimate_embedder.models.foreign_code import code_findings, is_pickle, unsafe_pickles
from ultimate_embedder.models.registry import find_spec, name_to_pull
from ultimate_embedder.types import ModelSpec

__all__ = ["is_pickle", "is_trusted", "may_be_pickled", "pickle_refusal", "require_trust"]

MOST_FINDINGS = 3  # in a message


def require_trust(spec: ModelSpec | None, folder: Path, trusted: Sequence[str]) -> bool:
    """Whether the user trusts a model; raises `ModelError` if not and its files would run code or are pickles.

    Everything that loads a model calls this first, and passes the result on as `trust_remote_code`.
    """
    if is_trusted(spec, folder, trusted):
        return True
    if findings := list(dict.fromkeys(code_findings(folder))):
        raise _code_refusal(spec, folder, findings)
    for pickle in unsafe_pickles(folder):
        if not may_be_pickled(spec, pickle):
            raise pickle_refusal(spec, folder, pickle, str(folder))
    return False


def may_be_pickled(spec: ModelSpec | None, name: str) -> bool:
    """Whether a file may be a pickle: those beside the weights of a registered model that has no safetensors.

    They are read with `weights_only=True`, or not at all. The folders of modules are none of these.
    """
    return spec is not None and spec.pickled_weights and "/" not in name


def is_trusted(spec: ModelSpec | None, folder: Path | None, trusted: Sequence[str]) -> bool:
    """Whether one of these words names the model: by registry key, alias or hub id, or by the path of its folder.

    Neither the last part of a hub id nor the name of a folder is enough: anybody can choose that.
    """
    if spec is not None:
        return any(_hub_id(word) == spec.hub_id.lower() for word in trusted)
    if folder is None:
        return False
    return any(find_spec(word) is None and Path(word).expanduser().resolve() == folder.resolve() for word in trusted)


def pickle_refusal(spec: ModelSpec | None, folder: Path | None, pickle: str, where: str) -> ModelError:
    """The error about weights that are a pickle."""
    word = _word(spec, folder)
    return ModelError(
        f"{_name(spec, folder)}: the weights in {pickle} are a pickle ({where}), and loading one can run any code. "
        f"Convert them to safetensors ('Weights' in docs/models.md has the two lines), or choose another model; if you "
        f"trust whoever made it, allow it with --trust-remote-code {word}."
    )


def _code_refusal(spec: ModelSpec | None, folder: Path, findings: Sequence[str]) -> ModelError:
    more = f"; and {len(findings) - MOST_FINDINGS} more" if len(findings) > MOST_FINDINGS else ""
    return ModelError(
        f"{_name(spec, folder)} would run code that is not part of sentence-transformers or transformers: "
        f"{'; '.join(findings[:MOST_FINDINGS])}{more} ({folder}). If you have read it and trust it, allow it with "
        f"--trust-remote-code {_word(spec, folder)}; else choose another model."
    )


def _hub_id(word: str) -> str:
    spec = find_spec(word)
    return (spec.hub_id if spec else word).lower()


def _name(spec: ModelSpec | None, folder: Path | None) -> str:
    return spec.key if spec else folder.resolve().name if folder else ""


def _word(spec: ModelSpec | None, folder: Path | None) -> str:
    """What to type after --trust-remote-code."""
    return name_to_pull(spec) if spec else str(folder)
