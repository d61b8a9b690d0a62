"""Passes whose models have the same tokenizer share their token ids: each text is tokenised once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ultimate_embedder.events import Warned
from ultimate_embedder.execution.executor import PassWork
from ultimate_embedder.files import file_sha256
from ultimate_embedder.models import Encoder
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.planning import PassPlan, Rows
from ultimate_embedder.session import Session
from ultimate_embedder.vectors import TokenLimits, TokenStore


def share_tokens(
    works: Sequence[PassWork], rows: Rows, collection: CollectionOutput, session: Session
) -> tuple[list[PassWork], list[TokenStore]]:
    """Give passes that tokenise alike one token store, also one that a stopped run has left.

    A model is loaded for this only where its tokenizer file equals another's, or where there are tokens to resume with.
    """
    waiting = [work for work in works if work.texts.count(rows)]
    files = [_tokenizer_checksum(work.plan) for work in waiting]
    left = bool(collection.left_tokens)
    alike: dict[Path, list[tuple[int, Encoder]]] = {}
    for work, file in zip(waiting, files, strict=True):
        if file is None or not (files.count(file) > 1 or left):
            continue
        encoder = session.load(work.plan)
        if fingerprint := encoder.tokenizer_fingerprint():
            alike.setdefault(collection.tokens(fingerprint), []).append((work.plan.number, encoder))
    store_of: dict[int, TokenStore] = {}
    for folder, passes in alike.items():
        if len(passes) > 1 or folder.is_dir():
            store = TokenStore(folder, _limits([encoder for _, encoder in passes]))
            for note in store.notes:
                session.emit(Warned(collection=collection.name, message=note))
            store_of |= {number: store for number, _ in passes}
    sharing = [replace(work, tokens=store_of.get(work.plan.number)) for work in works]
    return sharing, list({id(store): store for store in store_of.values()}.values())


def _limits(encoders: Sequence[Encoder]) -> TokenLimits:
    return TokenLimits(min(each.vocabulary for each in encoders), min(each.max_tokens for each in encoders))


def _tokenizer_checksum(plan: PassPlan) -> str | None:
    """Of the model's tokenizer, if it is one file."""
    path = plan.model.path / "tokenizer.json"
    return file_sha256(path) if path.is_file() else None
