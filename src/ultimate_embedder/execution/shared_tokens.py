"""Passes whose models have the same tokenizer share their token ids: each text is tokenised once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ultimate_embedder.execution.executor import PassWork
from ultimate_embedder.files import file_sha256
from ultimate_embedder.output import TOKENS_PREFIX
from ultimate_embedder.planning import PassPlan, Rows
from ultimate_embedder.session import Session
from ultimate_embedder.vectors import TokenStore


def share_tokens(
    works: Sequence[PassWork], rows: Rows, scratch: Path, session: Session
) -> tuple[list[PassWork], list[TokenStore]]:
    """Give passes that tokenise alike one token store below `scratch`, also one that a stopped run has left.

    A model is loaded for this only where its tokenizer file equals another's, or where there are tokens to resume with.
    """
    waiting = [work for work in works if work.texts.count(rows)]
    files = [_tokenizer_checksum(work.plan) for work in waiting]
    alike: dict[Path, list[int]] = {}
    for work, file in zip(waiting, files, strict=True):
        shared = files.count(file) > 1 or any(scratch.glob(f"{TOKENS_PREFIX}*"))
        if file is not None and shared and (fingerprint := session.load(work.plan).tokenizer_fingerprint()):
            alike.setdefault(scratch / f"{TOKENS_PREFIX}{fingerprint}", []).append(work.plan.number)
    store_of: dict[int, TokenStore] = {}
    for folder, numbers in alike.items():
        if len(numbers) > 1 or folder.is_dir():
            store_of |= dict.fromkeys(numbers, TokenStore(folder))
    sharing = [replace(work, tokens=store_of.get(work.plan.number)) for work in works]
    return sharing, list({id(store): store for store in store_of.values()}.values())


def _tokenizer_checksum(plan: PassPlan) -> str | None:
    """Of the model's tokenizer, if it is one file."""
    path = plan.model.path / "tokenizer.json"
    return file_sha256(path) if path.is_file() else None
