"""Go on in fp32 with a pass that fp16 is too narrow for: a new identity, a new store, nothing of the old one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ultimate_embedder.config import RunConfig
from ultimate_embedder.events import Emit, Warned
from ultimate_embedder.execution.executor import PassWork
from ultimate_embedder.execution.ladder import PASS_IN_FP32
from ultimate_embedder.execution.pass_store import open_store
from ultimate_embedder.files import delete
from ultimate_embedder.output import Output
from ultimate_embedder.planning import PassPlan
from ultimate_embedder.session import Session
from ultimate_embedder.state import Damaged
from ultimate_embedder.vectors import (
    MemoryStore,
    PassVectors,
    in_full_precision,
    note_overflow,
    read_overflow,
)


def known_precision(plan: PassPlan, collection: str, config: RunConfig, emit: Emit) -> PassPlan:
    """The pass as an earlier run left it: in fp32, if that found fp16 too narrow. `--fresh` forgets it."""
    store = Output(config.output).collection(collection).store
    noted = read_overflow(store, plan.identity) if not config.fresh else None
    if isinstance(noted, Damaged):
        delete(noted.path)
    elif noted is not None:
        return _in_fp32(plan)
    elsewhere = None
    if config.resume_from is not None:
        elsewhere = read_overflow(Output(config.resume_from).collection(collection).store, plan.identity)
    for each in (noted, elsewhere):
        if isinstance(each, Damaged):
            emit(Warned(collection=collection, message=f"{each}; fp16 is tried again"))
    if elsewhere is None or isinstance(elsewhere, Damaged):
        return plan
    note_overflow(store, plan.identity, texts=0, unusable=0)  # for runs that do not resume from there
    return _in_fp32(plan)


def too_narrow(works: Mapping[int, PassWork]) -> list[int]:
    """The passes, by number, that must begin again in fp32."""
    return [number for number, work in works.items() if work.overflow is not None and work.overflow.too_narrow]


def begin_in_fp32(
    work: PassWork, collection: str, session: Session, *, in_memory: bool
) -> tuple[PassPlan, PassVectors]:
    """The pass in fp32, with its store; what is in fp16 is dropped, and later runs know."""
    plan, watch = work.plan, work.overflow
    texts, unusable = (watch.done, watch.unusable) if watch is not None else (0, 0)
    if not in_memory:
        note_overflow(Output(session.config.output).collection(collection).store, plan.identity, texts, unusable)
    before = plan.identity.dtype
    plan = _in_fp32(plan)
    reason = f"{unusable} of {texts} texts have no usable vector in fp16: numbers overflow"
    details = {
        "reason": reason,
        "before": before,
        "after": plan.identity.dtype,
        "texts": texts,
        "unusable": unusable,
    }
    work.events.mitigated(PASS_IN_FP32, details)
    message = (
        f"{plan.name}: {unusable} of the first {texts} texts have no usable vector in fp16 (numbers overflow). All are "
        "computed in fp32, from the beginning, and so are they in later runs. With --precision fp32 a run begins so."
    )
    session.emit(Warned(collection=collection, message=message))
    if in_memory:
        return plan, MemoryStore(plan.identity)
    return plan, open_store(plan, collection, session.config, session.emit)


def _in_fp32(plan: PassPlan) -> PassPlan:
    return replace(plan, identity=in_full_precision(plan.identity))
