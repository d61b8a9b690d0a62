"""A planned run on several nodes: modes, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import DescribedDevice
from ultimate_embedder.estimate.memory import PassMemory, compare_modes
from ultimate_embedder.estimate.stages import DOWNLOADING, in_words
from ultimate_embedder.planned import PlannedCluster, PlannedMode, PlannedModel, PlannedSeconds
from ultimate_embedder.planning import (
    CLUSTER_MODE,
    NETWORK_BYTES_PER_S,
    NOTHING,
    ClusterLoad,
    ClusterShape,
    Estimate,
    Limit,
    Range,
    bottleneck,
    useful_nodes,
)

START_NODES_S = Range(5.0, 60.0)  # assumed: a process on each node, which imports torch and opens its devices
NOT_MEASURED = "how many vectors per second the driver can take in is not measured: it is not among the limits"


@dataclass(frozen=True)
class PassOnNodes:
    """A pass: how long one node takes for it, what travels, and what limits it on all."""

    one_node: Estimate
    load: ClusterLoad
    limits: tuple[Limit, ...]


def cluster_mode(asked: str, passes: int) -> tuple[str, str]:
    """The mode of a collection on a cluster, and why."""
    if passes == 1:
        return "single", "there is one model"
    return CLUSTER_MODE if asked == "auto" else (asked, "asked for")


def cluster_modes(
    passes: Sequence[PassMemory], devices: Sequence[DescribedDevice], config: RunConfig, nodes: int
) -> Iterator[PlannedMode]:
    """Which modes fit on nodes, and why: each node has one model at a time, so that it is as if it was alone."""
    alone = next(compare_modes(passes, devices, config))
    busy = sum(each.has_work for each in passes)
    yield alone.model_copy(update={"why": f"{alone.why}: all nodes on one model"})
    yield alone.model_copy(update={"mode": "sequential", "why": f"{alone.why}: all nodes on one model, in turns"})
    enough = nodes >= busy
    why = "models on different nodes" if enough else f"{busy} models need as many nodes: {nodes} are too few"
    yield PlannedMode(mode="simultaneous", fits=alone.fits and enough, why=why)


def distributing(models: Sequence[PlannedModel], cluster: ClusterShape, *, ship: bool) -> Estimate:
    """How long it takes until every node has the models that have work."""
    size = sum(model.file_bytes for model in models)
    if ship:
        sent = size * cluster.nodes
        seconds = Range(sent / NETWORK_BYTES_PER_S.high, sent / NETWORK_BYTES_PER_S.low)
        return Estimate(seconds, "assumed: all nodes get them from the driver, at 0.1 to 1 GB per second together")
    return Estimate(Range(0.0, size / DOWNLOADING.low), "assumed: nodes have them, or download at the same time")


def planned_cluster(passes: Sequence[PassOnNodes], cluster: ClusterShape) -> PlannedCluster:
    """All passes on nodes: what each limit would take alone, and which one is the bottleneck."""
    by_name: dict[str, Limit] = {}
    for limit in (limit for each in passes for limit in each.limits):
        before = by_name.get(limit.what)
        seconds = limit.seconds + (before.seconds if before else NOTHING)
        by_name[limit.what] = Limit(limit.what, seconds, limit.basis)
    texts = sum(each.load.texts for each in passes)
    back = sum(each.load.bytes_back(shared_output=cluster.shared_output) for each in passes)
    out = sum(each.load.bytes_out for each in passes)
    one_node = sum((each.one_node.seconds for each in passes), NOTHING)
    units = max((each.load.most_units for each in passes), default=0)
    worst = bottleneck(list(by_name.values())) if by_name else None
    return PlannedCluster(
        nodes=cluster.nodes,
        shared_output=cluster.shared_output,
        texts=texts,
        one_node=_seconds(one_node, "; ".join(dict.fromkeys(each.one_node.basis for each in passes))),
        limits={name: _seconds(limit.seconds, limit.basis) for name, limit in by_name.items()},
        bottleneck=worst.what if worst else None,
        useful_nodes=useful_nodes(one_node, units, list(by_name.values())),
        texts_per_second_low=_rate(texts, [limit.seconds.high for limit in by_name.values()]),
        texts_per_second_high=_rate(texts, [limit.seconds.low for limit in by_name.values()]),
        bytes_out=out,
        bytes_back=back,
        bytes_out_per_text=out / texts if texts else 0.0,
        bytes_back_per_text=back / texts if texts else 0.0,
    )


def _rate(texts: int, seconds: Sequence[float]) -> float:
    longest = max(seconds, default=0.0)
    return texts / longest if longest > 0 else 0.0


def _seconds(seconds: Range, basis: str) -> PlannedSeconds:
    return in_words([Estimate(seconds, basis)])
