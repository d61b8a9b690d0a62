"""The one loop that runs a pass: tokenise | plan | forward | check | store, overlapped."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ultimate_embedder.chunks import ChunkTable
from ultimate_embedder.events import BatchEncoded, Emit, PassFinished, PassStarted, WindowTokenized
from ultimate_embedder.models import Encoder
from ultimate_embedder.passes.ahead import run_ahead
from ultimate_embedder.passes.modes import PassPlan
from ultimate_embedder.passes.windows import Window, tokenized_windows
from ultimate_embedder.vectors import VectorStore, fingerprint

UNIT_NORM_TOLERANCE = 0.01


def run_pass(
    plan: PassPlan,
    collection: str,
    table: ChunkTable,
    store: VectorStore,
    get_encoder: Callable[[], Encoder],
    emit: Emit,
) -> None:
    """Give every text of the table a vector in the store. Texts that have one already cost nothing."""
    wanted = _first_occurrences(table.keys) & ~store.holds(table.keys)
    encoder = get_encoder() if wanted.any() else None
    started = time.perf_counter()
    emit(
        PassStarted(
            collection=collection,
            model=plan.model.name,
            model_pass=plan.number,
            weight=plan.weight,
            device=plan.device.name,
            dtype=plan.identity.dtype,
            fingerprint=fingerprint(plan.identity),
            texts=table.distinct_texts(),
            stored_texts=table.distinct_texts() - int(wanted.sum()),
        )
    )
    if encoder is not None:
        with store:
            _encode_wanted(plan, collection, table, wanted, store, encoder, emit)
    emit(
        PassFinished(
            collection=collection,
            model=plan.model.name,
            model_pass=plan.number,
            dim=store.dim or 0,
            truncated=store.count_truncated(table.keys),
            seconds=time.perf_counter() - started,
        )
    )


def bad_rows(vectors: np.ndarray, unit_norm: bool) -> np.ndarray:
    """Mark the vectors that cannot be right: not finite, of no length, or not of length one where they must be."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(vectors, axis=1)
    bad = ~np.isfinite(norms) | (norms == 0)
    if unit_norm:
        bad |= ~(np.abs(norms - 1) < UNIT_NORM_TOLERANCE)
    return np.asarray(bad)


def _encode_wanted(
    plan: PassPlan,
    collection: str,
    table: ChunkTable,
    wanted: np.ndarray,
    store: VectorStore,
    encoder: Encoder,
    emit: Emit,
) -> None:
    batch_index = 0
    waiting_since = time.perf_counter()
    windows = tokenized_windows(table, wanted, encoder, plan.device.budget_tokens())
    for window in run_ahead(windows):
        emit(_window_event(plan, collection, window))
        for batch in window.batches:
            prepared = encoder.batch(window.texts, batch.rows)
            forward_since = time.perf_counter()
            vectors = encoder.forward(prepared).cpu().numpy()
            forward_seconds = time.perf_counter() - forward_since
            bad = bad_rows(vectors, encoder.unit_norm)
            good = batch.rows[~bad]
            store.append(window.keys[good], vectors[~bad], window.texts.truncated[good])
            emit(
                BatchEncoded(
                    collection=collection,
                    model=plan.model.name,
                    model_pass=plan.number,
                    batch_index=batch_index,
                    rows=len(batch.rows),
                    tokens=prepared.tokens,
                    padded_tokens=prepared.padded_tokens,
                    longest=batch.longest,
                    bad_rows=int(bad.sum()),
                    wait_seconds=forward_since - waiting_since,
                    forward_seconds=forward_seconds,
                    memory=plan.device.snapshot(),
                )
            )
            batch_index += 1
            waiting_since = time.perf_counter()


def _first_occurrences(keys: np.ndarray) -> np.ndarray:
    first = np.zeros(len(keys), bool)
    if len(keys):
        first[np.unique(keys, axis=0, return_index=True)[1]] = True
    return first


def _window_event(plan: PassPlan, collection: str, window: Window) -> WindowTokenized:
    return WindowTokenized(
        collection=collection,
        model=plan.model.name,
        texts=len(window.keys),
        tokens=int(window.texts.lengths.sum()),
        truncated=int(window.texts.truncated.sum()),
        batches=len(window.batches),
        seconds=window.seconds,
    )
