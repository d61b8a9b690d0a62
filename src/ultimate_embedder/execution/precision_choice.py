"""`--min-cosine`: the fastest way to compute a pass in a low precision that keeps its vectors near those of fp32."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ultimate_embedder.batching import plan_batches
from ultimate_embedder.chunks import TextRows
from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import CPU_BUDGET_TOKENS, CpuDevice
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import PrecisionChosen, Warned
from ultimate_embedder.execution.precision_check import sampled_rows
from ultimate_embedder.execution.roles import in_role
from ultimate_embedder.execution.windows import TableTexts, cutter_for, tokenize_windows
from ultimate_embedder.models import Encoder, in_words, possible_ways, row_cosines
from ultimate_embedder.output import Output
from ultimate_embedder.planning import PassPlan, Rows
from ultimate_embedder.session import Session
from ultimate_embedder.state import Damaged
from ultimate_embedder.types import MeasuredWay
from ultimate_embedder.vectors import Choice, pool_texts, read_choice, shorten, write_choice

ROUNDS = 2  # of timing, in turn: the first call of a runtime prepares what later ones use


def choose_ways(
    plans: Sequence[PassPlan], collection: str, table: TextRows, session: Session, *, in_memory: bool = False
) -> list[PassPlan]:
    """The passes, each in the way that `--min-cosine` chooses; raises `UsageError` where none is near enough."""
    if session.config.min_cosine is None:
        return list(plans)
    return [
        _choose(plan, collection, table, session, in_memory=in_memory) if plan.kind == "dense" else plan
        for plan in plans
    ]


def known_way(plan: PassPlan, collection: str, config: RunConfig) -> PassPlan | None:
    """The pass in the way that an earlier run has chosen; None if there is none, or it is not near enough now."""
    choice = _earlier(plan, collection, config)
    return in_way(plan, choice.chosen) if isinstance(choice, Choice) else None


def in_way(plan: PassPlan, way: MeasuredWay) -> PassPlan:
    """A pass, computed in a way that was measured."""
    return replace(plan, identity=replace(plan.identity, quantization=way.quantization))


def _choose(plan: PassPlan, collection: str, table: TextRows, session: Session, *, in_memory: bool) -> PassPlan:
    config, started = session.config, time.perf_counter()
    store = Output(config.output).collection(collection).store
    choice = None if in_memory else _earlier(plan, collection, config)
    if isinstance(choice, Damaged):
        session.emit(Warned(collection=collection, message=f"{choice}; the ways are measured again"))
        choice = None
    kept = choice is not None
    if choice is None:
        choice = _measure_all(plan, table, session)
        if not in_memory:
            write_choice(store, plan.identity, choice.chosen, choice.measured)
    session.emit(
        PrecisionChosen(
            collection=collection,
            model=plan.name,
            model_pass=plan.number,
            dtype=plan.identity.dtype,
            quantization=choice.chosen.quantization,
            way=_words(plan, choice.chosen),
            min_cosine=config.min_cosine or 0.0,
            measured=choice.measured,
            kept=kept,
            seconds=time.perf_counter() - started,
        )
    )
    if not kept and choice.chosen.speed < 1:
        message = (
            f"{plan.name}: {_words(plan, choice.chosen)} is slower than fp32 here ({choice.chosen.speed:.2f} x its "
            f"speed). Drop --precision {config.precision}."
        )
        session.emit(Warned(collection=collection, message=message))
    return in_way(plan, choice.chosen)


def _earlier(plan: PassPlan, collection: str, config: RunConfig) -> Choice | Damaged | None:
    """What an earlier run has chosen, if it can be computed here and is near enough."""
    if config.fresh:
        return None
    for output in (config.output, *([config.resume_from] if config.resume_from else [])):
        found = read_choice(Output(Path(output)).collection(collection).store, plan.identity)
        if not isinstance(found, Choice):
            if found is not None:
                return found
            continue
        near = found.chosen.mean_cosine >= (config.min_cosine or 0.0)
        if near and found.chosen.quantization in _ways(plan):
            return found
    return None


def _ways(plan: PassPlan) -> tuple[str | None, ...]:
    """What can be chosen: those of the kind that the pass has by rule."""
    if plan.identity.dtype != "int8":
        return (None,)
    in_groups = possible_ways(plan.backend, has_vnni=True)
    return in_groups if plan.identity.quantization in in_groups else (plan.identity.quantization,)


def _measure_all(plan: PassPlan, table: TextRows, session: Session) -> Choice:
    """Measure every way against fp32 on some of the texts, and choose the fastest that is near enough."""
    config = session.config
    mask = np.zeros(len(table), bool)
    mask[sampled_rows(len(table))] = True
    texts = TableTexts(table, mask)
    with session.fp32_alone(plan) as loaded:
        fp32 = _Timed(in_role(loaded, plan), texts, len(table), plan)
        ways = []
        for way in _ways(plan):
            session.stop.check()
            other = replace(plan, identity=replace(plan.identity, quantization=way))
            encoder = _Timed(in_role(session.load_apart(other), plan), texts, len(table), plan)
            for _ in range(ROUNDS):
                fp32.run()
                encoder.run()
            cosines = row_cosines(encoder.vectors, fp32.vectors)
            speed = fp32.seconds / max(encoder.seconds, 1e-9)
            ways.append(MeasuredWay(way, len(cosines), float(cosines.mean()), float(cosines.min()), speed))
    near = [way for way in ways if way.mean_cosine >= (config.min_cosine or 0.0)]
    if not near:
        raise UsageError(_refusal(plan, ways, config))
    return Choice(max(near, key=lambda way: way.speed), tuple(ways))


class _Timed:
    """An encoder, the vectors that it gives for some texts, and the least time that they took on one core."""

    def __init__(self, encoder: Encoder, texts: TableTexts, rows: int, plan: PassPlan) -> None:
        self._encoder = encoder
        cutter = cutter_for(encoder, plan.identity)
        self._windows = list(tokenize_windows(texts.read(Rows(0, rows)), encoder, cutter=cutter))
        self._dim = plan.identity.dim
        self.seconds = float("inf")
        self.vectors = np.empty((0, 0), np.float32)

    def run(self) -> None:
        """Encode the texts once more, as a worker on a CPU would."""
        device, found, seconds = CpuDevice(workers=1), [], 0.0
        with device.computing():
            for window in self._windows:
                rows = np.zeros((len(window.texts.rows), self._encoder.dim), np.float32)
                started = time.process_time()  # of all its threads: other programs do not count
                for batch in plan_batches(window.texts.lengths, CPU_BUDGET_TOKENS):
                    packs = self._encoder.can_pack_rows(window.texts, batch.rows, device)
                    prepared = self._encoder.batch(window.texts, batch.rows, packed=packs)
                    rows[batch.rows] = self._encoder.forward(prepared).numpy()
                seconds += time.process_time() - started
                vectors = shorten(rows, self._dim)
                if segments := window.texts.segments:
                    vectors = pool_texts(vectors, segments.text_of_row, segments.weights, normalize=True)
                found.append(vectors)
        self.seconds = min(self.seconds, seconds)
        self.vectors = np.concatenate(found)


def _words(plan: PassPlan, way: MeasuredWay) -> str:
    return f"int8 ({in_words(way.quantization)})" if plan.identity.dtype == "int8" else plan.identity.dtype


def _refusal(plan: PassPlan, ways: Sequence[MeasuredWay], config: RunConfig) -> str:
    """What was measured, and what to do."""
    rows = "; ".join(
        f"{_words(plan, way)}: mean {way.mean_cosine:.5f}, worst {way.worst_cosine:.5f}, {way.speed:.2f} x fp32's speed"
        for way in ways
    )
    best = max(way.mean_cosine for way in ways)
    return (
        f"--min-cosine {config.min_cosine:g}: no way to compute {plan.name} in {config.precision} is that near to fp32 "
        f"on {ways[0].texts} of the texts. {rows}. Ask for {np.floor(best * 1e4) / 1e4:g} at most, or drop --precision."
    )
