"""How long a planned run takes: passes by speeds and modes, and the stages around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ultimate_embedder.config import RunConfig
from ultimate_embedder.estimate.cluster import PassOnNodes
from ultimate_embedder.estimate.collection import CountedCollection, CountedPass
from ultimate_embedder.estimate.models import PlanModels
from ultimate_embedder.estimate.speed import Speeds, pass_load
from ultimate_embedder.estimate.stages import StageTimes, in_words
from ultimate_embedder.planned import PlannedCollection, PlannedSeconds, PlannedTime
from ultimate_embedder.planning import (
    ClusterLoad,
    ClusterShape,
    Estimate,
    Range,
    count_sessions,
    in_turn,
    limits_of,
    pass_seconds,
    slowest,
    together,
)

HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Timing:
    """What times depend on."""

    config: RunConfig
    models: PlanModels
    speeds: Speeds
    stages: StageTimes
    cluster: ClusterShape | None = None

    def time_pass(self, each: CountedPass) -> Estimate | None:
        """How long a pass takes, on its devices or on all nodes; None if that is not known."""
        if self.cluster is None:
            return self._time_on_devices(each)
        found = self.time_on_nodes(each)
        return slowest(found.limits) if found is not None else None

    def time_on_nodes(self, each: CountedPass) -> PassOnNodes | None:
        """How long one node takes for a pass, and what limits it on all; None if that is not known."""
        one_node = self._time_on_devices(each)
        if self.cluster is None or one_node is None:
            return None
        dim = each.plan.identity.dim or each.memory.encoder.dim
        load = ClusterLoad(each.counts.texts, each.counts.text_bytes, dim)
        return PassOnNodes(one_node, load, tuple(limits_of(one_node, load, self.cluster)))

    def _time_on_devices(self, each: CountedPass) -> Estimate | None:
        """How long a pass takes on the devices of one machine; None if that is not known."""
        placed = each.placed
        if placed is None:
            return pass_seconds(pass_load(each.counts, each.memory.encoder, (), ()), ())
        if any(card.streamed or card.too_large for card in placed.cards.values()):
            return None  # the layers come from the host, for every batch: no roofline of the card
        on_cpu = not any(device.has_ceiling for device in placed.devices)
        dtype = each.plan.identity.dtype
        dtype = "float32" if on_cpu and dtype in HALF else dtype  # a CPU computes in fp32
        encoder = self.models.encoder(each.plan, dtype)
        workers = sum(device.workers for device in placed.devices)
        key = self.models.key(each.plan)
        of_kind = {
            device.hardware: self.speeds.lane(device, key, dtype, encoder, each.counts, workers)
            for device in {device.hardware: device for device in placed.devices}.values()
        }
        lanes = [of_kind[device.hardware] for device in placed.devices]
        return pass_seconds(pass_load(each.counts, encoder, placed.devices, lanes), lanes)

    def time_collection(self, counted: CountedCollection) -> tuple[PlannedCollection, Estimate | None]:
        """The collection with its times, and how long its passes take together."""
        estimates = [self.time_pass(each) for each in counted.passes]
        planned = counted.planned
        passes = [
            each.model_copy(update={"seconds": in_words([estimate]) if estimate else None})
            for each, estimate in zip(planned.passes, estimates, strict=True)
        ]
        seconds: dict[str, PlannedSeconds] = {}
        if not planned.skipped and planned.error is None:
            seconds["load chunks"] = in_words([self.stages.loading_chunks(counted.load_seconds)])
        encoding = _all_known(estimates, at_once=any(stage.together for stage in counted.stages))
        if encoding is not None and counted.passes:
            seconds["encode"] = in_words([encoding])
        if (words := planned.words) is not None and counted.words_seconds is not None:
            seconds["count words"] = in_words([self.stages.counting_words(counted.words_seconds)])
            planned = planned.model_copy(update={"words": words.model_copy(update={"seconds": seconds["count words"]})})
        exports = [self.stages.exporting(kind, planned.points, size) for kind, size in planned.export_bytes.items()]
        if exports:
            seconds["export"] = in_words(exports)
        if any(each.counts.texts for each in counted.passes) and (rest := self.stages.rest(planned.points)):
            seconds["other"] = in_words([rest])
        modes = [each.model_copy(update={"seconds": self._time_mode(counted, each.mode)}) for each in planned.modes]
        return planned.model_copy(update={"passes": passes, "seconds": seconds, "modes": modes}), encoding

    def _time_mode(self, counted: CountedCollection, mode: str) -> PlannedSeconds | None:
        stages, passes = counted.in_modes[mode]
        encoding = _all_known([self.time_pass(each) for each in passes], at_once=any(each.together for each in stages))
        return in_words([encoding]) if encoding else None


def _all_known(estimates: Sequence[Estimate | None], *, at_once: bool) -> Estimate | None:
    known = [each for each in estimates if each is not None]
    if len(known) < len(estimates):
        return None
    basis = "; ".join(dict.fromkeys(each.basis for each in known if each.seconds.high > 0))
    return Estimate(together(known) if at_once else in_turn(known), basis)


def time_run(
    collections: Sequence[PlannedCollection],
    starting: Sequence[tuple[str, Estimate]],
    session_s: float,
    *,
    complete: bool,
) -> PlannedTime:
    """All stages of a run, and how many sessions it takes; no total where the time of a pass is not known."""
    stages = {name: in_words([estimate]) for name, estimate in starting}
    for name in ("load chunks", "encode", "count words", "export", "other"):
        parts = [each.seconds[name] for each in collections if name in each.seconds]
        if parts:
            estimates = [Estimate(Range(part.low, part.high), part.basis) for part in parts]
            stages[name] = in_words(estimates)
    if not complete:
        return PlannedTime(stages=stages, session_seconds=session_s)
    total = in_words([Estimate(Range(each.low, each.high), each.basis) for each in stages.values()])
    encode = stages.get("encode")
    total = total.model_copy(update={"basis": encode.basis if encode and encode.basis else total.basis})
    before = in_turn([estimate for _, estimate in starting]) + _range(stages.get("load chunks"))
    sessions = count_sessions(_range(total), before, session_s)
    return PlannedTime(
        stages=stages,
        total=total,
        session_seconds=session_s,
        sessions_low=sessions.low if sessions else None,
        sessions_high=sessions.high if sessions else None,
    )


def _range(seconds: PlannedSeconds | None) -> Range:
    return Range(seconds.low, seconds.high) if seconds else Range(0.0, 0.0)
