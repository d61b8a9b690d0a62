"""What a low precision costs on this collection: some of its vectors against those in fp32."""

from __future__ import annotations

import time

import numpy as np

from ultimate_embedder.chunks import TextRows
from ultimate_embedder.events import PrecisionChecked, Warned
from ultimate_embedder.execution.host import encode_on_host
from ultimate_embedder.execution.roles import in_role
from ultimate_embedder.execution.windows import TableTexts, cutter_for, tokenize_windows
from ultimate_embedder.models import Encoder, row_cosines
from ultimate_embedder.planning import PassPlan, Rows
from ultimate_embedder.session import Session
from ultimate_embedder.state import Damaged
from ultimate_embedder.vectors import Agreement, PassVectors, pool_texts, shorten

SAMPLE_TEXTS = 64


def sampled_rows(rows: int) -> np.ndarray:
    """Some rows of a table, from its first to its last."""
    return np.unique(np.linspace(0, rows - 1, SAMPLE_TEXTS).astype(int))


def check_precision(
    plan: PassPlan, collection: str, table: TextRows, store: PassVectors, session: Session, *, new_rows: int
) -> None:
    """Report how near the vectors of a pass are to fp32, and warn where that is not near enough."""
    started = time.perf_counter()
    known = store.agreement()
    if isinstance(known, Damaged):
        session.emit(Warned(collection=collection, message=f"{known}; it is measured again"))
    found = known if isinstance(known, Agreement) and not new_rows else None
    if found is None:
        found = _measure(plan, table, store, session)
    if found is None:
        return
    dtype = plan.identity.dtype
    session.emit(
        PrecisionChecked(
            collection=collection,
            model=plan.name,
            model_pass=plan.number,
            dtype=dtype,
            texts=found.texts,
            mean_cosine=found.mean_cosine,
            worst_cosine=found.worst_cosine,
            seconds=time.perf_counter() - started,
        )
    )
    least = session.config.min_cosine
    if least is not None and found.mean_cosine < least:
        message = (
            f"{plan.name} in {dtype} has a mean cosine of {found.mean_cosine:.5f} with fp32 now, less than "
            f"--min-cosine {least:g}: the texts have changed since a way was chosen. --fresh chooses again."
        )
        session.emit(Warned(collection=collection, message=message))
    if found.poor:
        cosines = f"{found.mean_cosine:.4f} with fp32 on average, {found.worst_cosine:.4f} at worst"
        message = f"{plan.name} loses much in {dtype}: cosine {cosines}. Drop --precision {session.config.precision}."
        session.emit(Warned(collection=collection, message=message))


def _measure(plan: PassPlan, table: TextRows, store: PassVectors, session: Session) -> Agreement | None:
    rows = sampled_rows(len(table))
    mask = np.zeros(len(table), bool)
    mask[rows[store.holds(table.keys[rows])]] = True
    if not mask.any():
        return None
    with session.fp32_alone(plan) as loaded:
        fp32 = in_role(loaded, plan)
        cosines = _cosines(store, TableTexts(table, mask), len(table), fp32, plan.identity.dim)
    found = Agreement(len(cosines), float(cosines.mean()), float(cosines.min()))
    store.keep_agreement(found)
    return found


def _cosines(store: PassVectors, texts: TableTexts, rows: int, fp32: Encoder, dim: int | None) -> np.ndarray:
    found = []
    for window in tokenize_windows(texts.read(Rows(0, rows)), fp32, cutter=cutter_for(fp32, store.identity)):
        vectors = shorten(encode_on_host(lambda: fp32, window.texts, np.arange(len(window.texts.rows))), dim)
        if segments := window.texts.segments:
            vectors = pool_texts(vectors, segments.text_of_row, segments.weights, normalize=True)
        found.append(row_cosines(vectors, store.read(window.keys)))
    return np.concatenate(found)
