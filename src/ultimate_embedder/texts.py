"""Encode texts in memory: the engine of a run, with its planning, leases, batches and checks, and without files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from ultimate_embedder.chunks import TextList
from ultimate_embedder.errors import NoVectorsError, UsageError
from ultimate_embedder.events import Emit
from ultimate_embedder.execution import CollectionWork, LocalExecutor, WorkersLearned, choose_ways, run_passes
from ultimate_embedder.planning import PassPlan, as_candidate
from ultimate_embedder.session import Session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.vectors import Agreement, Candidate, FusedVectors, Fusion, MemoryStore, plan_fusion

MOST_NAMED = 5  # texts in a message


class TextEncoder:
    """Encodes texts as documents, or as queries, with the models of a session; one call at a time.

    What a call has learned is kept for the next: batch sizes that fit, and that fp16 is too narrow for a model.
    """

    def __init__(self, session: Session, *, queries: bool = False) -> None:
        self._session = session
        self._name = "queries" if queries else "texts"
        dense = [plan for plan in session.passes_for() if plan.kind == "dense"]
        self._plans = [dataclasses.replace(plan, queries=queries) for plan in dense]
        self._learned: WorkersLearned = {}
        self._agreements: dict[int, Agreement] = {}
        self._chosen = False

    def load(self) -> Fusion:
        """Load every model on the host, and tell how their vectors are combined."""
        return plan_fusion(self._session.config.fusion, [self._candidate(plan) for plan in self._plans])

    def encode(self, texts: Sequence[str], emit: Emit, stop: StopSwitch) -> dict[str, np.ndarray]:
        """Vectors of the texts by name, a row for each; '' if there is one vector. Equal texts are encoded once.

        Raises `NoVectorsError` if a model gives no usable vector for a text.
        """
        # a fresh process could not give its vectors to this one: where every device is lost the CPU goes on
        session = dataclasses.replace(self._session, emit=emit, stop=stop, may_restart=False)
        table = TextList(texts)
        if not self._chosen:  # for all calls, by the texts of the first
            self._plans = choose_ways(self._plans, self._name, table, session, in_memory=True)
            self._chosen = True
        stores = [MemoryStore(plan.identity, self._agreements.get(plan.number)) for plan in self._plans]
        work = CollectionWork(self._name, table, self._plans, stores, export_bytes=None)
        work = run_passes(work, LocalExecutor(session, session.devices, self._learned), session)
        stop.check()
        self._remember(work)
        fused = FusedVectors(work.stores, self.load())
        self._require_all(fused, table, texts)
        return fused.read(table.keys)

    def _remember(self, work: CollectionWork) -> None:
        self._plans = list(work.plans)
        for plan, store in zip(work.plans, work.stores, strict=True):
            if isinstance(found := store.agreement(), Agreement):
                self._agreements[plan.number] = found

    def _candidate(self, plan: PassPlan) -> Candidate:
        encoder = self._session.load(plan)
        return as_candidate(plan.model, plan.weight, plan.identity.dim or encoder.dim)

    def _require_all(self, fused: FusedVectors, table: TextList, texts: Sequence[str]) -> None:
        missing = np.flatnonzero(~fused.holds(table.keys))
        if not len(missing):
            return
        models = ", ".join(model for model, _ in fused.without(table.keys))
        named = [f"{self._name}[{row}] ({texts[row][:40]!r})" for row in missing[:MOST_NAMED]]
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        raise NoVectorsError(
            f"{models} gave no usable vector (not finite, or of no length) for {', '.join(named)}{more}. "
            "Leave them out, or use another model or --precision fp32."
        )


def check_texts(given: Iterable[str], name: str = "texts") -> list[str]:
    """The texts as a list; the first that cannot be encoded is a `UsageError` with its place."""
    wanted = "Give a string, or a list of strings"
    if given is None or isinstance(given, bytes | Mapping | AbstractSet):
        raise UsageError(f"{name} is {_kind(given)}. {wanted}.")
    if hasattr(given, "columns"):  # a data frame: going through it gives the names of its columns
        raise UsageError(f"{name} is {_kind(given)}. {wanted}, such as one of its columns: frame['text'].")
    try:
        texts = list(given)
    except TypeError:
        raise UsageError(f"{name} is {_kind(given)}. {wanted}.") from None
    for place, text in enumerate(texts):
        if problem := _text_problem(text):
            raise UsageError(f"{name}[{place}] {problem}")
    return texts


def _text_problem(text: Any) -> str | None:
    must = "every text must be a string that is not empty."
    if isinstance(text, bytes):
        return f"is bytes: {must} Decode it: text.decode()."
    if not isinstance(text, str):
        return f"is {_kind(text)}: {must}"
    if not text.strip():
        return f"is {'only whitespace' if text else 'empty'}: {must} Leave it out."
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            where = f"at character {error.start} is half a surrogate pair ({text[error.start]!a})"
            return f"is not valid Unicode: {where}. Replace it: text.encode(errors='replace').decode()."
    return None


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
