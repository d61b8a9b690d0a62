"""A pass on the nodes of a cluster: how long it takes, and what keeps it from being faster. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ultimate_embedder.planning.estimates import NOTHING, Estimate, Range

CLUSTER_MODE = ("exclusive", "every node works on each model in turn, so that none waits for a slower one")
UNIT_TEXTS = 1024  # that travel to a node together, at the most
LEAST_TEXTS = 32  # of a unit: less would cost more to send than to encode
UNITS_PER_NODE = 4  # at the least, so that the faster node can take more
KEY_BYTES = 16  # of a text, both ways
MARK_BYTES = 1  # whether a text is beyond the limit
FLOAT_BYTES = 4
DRIVER_VECTORS_PER_S: Mapping[int, float] = {384: 39_316.0, 1024: 22_544.0}
"""Vectors per second that the driver takes in and stores, by dimensions. Measured: docs/scale.md."""
SHARED_VECTORS_PER_S: float | None = 31_067.0
"""The same with --shared-output, where nodes write the vectors and the driver adopts their files."""
NETWORK_BYTES_PER_S = Range(100e6, 1e9)  # assumed: what the driver's machine reaches of 1 to 10 Gbit/s
NODES, DRIVER, NETWORK = "nodes", "driver", "network"


def unit_texts(texts: int, nodes: int) -> int:
    """How many texts a unit has, so that there are several for each node."""
    return max(LEAST_TEXTS, min(UNIT_TEXTS, math.ceil(texts / (UNITS_PER_NODE * max(1, nodes)))))


@dataclass(frozen=True)
class ClusterShape:
    """So many nodes that are alike, and how vectors come back from them."""

    nodes: int
    shared_output: bool = False


@dataclass(frozen=True)
class ClusterLoad:
    """What travels for a pass: its texts, and vectors of so many dimensions."""

    texts: int
    text_bytes: int
    dim: int

    def units(self, nodes: int) -> int:
        """What can be given to so many nodes."""
        return math.ceil(self.texts / unit_texts(self.texts, nodes))

    @property
    def most_units(self) -> int:
        """What can be given to nodes, however many there are."""
        return math.ceil(self.texts / LEAST_TEXTS)

    @property
    def bytes_out(self) -> int:
        """To the nodes."""
        return self.text_bytes + self.texts * KEY_BYTES

    def bytes_back(self, *, shared_output: bool) -> int:
        """From the nodes; with a shared output only keys."""
        vector = 0 if shared_output else self.dim * FLOAT_BYTES
        return self.texts * (vector + KEY_BYTES + MARK_BYTES)


@dataclass(frozen=True)
class Limit:
    """One thing that a pass cannot be faster than."""

    what: str
    seconds: Range
    basis: str


def driver_vectors_per_s(dim: int, rates: Mapping[int, float] | None = None) -> float | None:
    """What the driver takes in of vectors with so many dimensions; None if nothing was measured.

    The time of a vector grows linearly with its size: between two measured sizes, and beyond them.
    """
    known = sorted((DRIVER_VECTORS_PER_S if rates is None else rates).items())
    if not known:
        return None
    (low, low_rate), (high, high_rate) = known[0], known[-1]
    slope = (1 / high_rate - 1 / low_rate) / (high - low) if high > low else 0.0
    least = 1 / (10 * max(rate for _, rate in known))  # figures of two sizes must not make it infinitely fast
    return 1 / max(least, 1 / low_rate + slope * (dim - low))


def limits_of(one_node: Estimate, load: ClusterLoad, cluster: ClusterShape) -> list[Limit]:
    """What a pass is limited by, if one node takes so long for it. The driver only where it was measured."""
    if not load.texts:
        return []
    units = load.units(cluster.nodes)
    share = math.ceil(units / cluster.nodes) / units  # of the node that has most: units are not divided
    limits = [Limit(NODES, one_node.seconds.times(share), one_node.basis)]
    rate = SHARED_VECTORS_PER_S if cluster.shared_output else driver_vectors_per_s(load.dim)
    if rate is not None:
        limits.append(Limit(DRIVER, Range(load.texts / rate, load.texts / rate), "measured: docs/scale.md"))
    sent = load.bytes_out + load.bytes_back(shared_output=cluster.shared_output)
    network = Range(sent / NETWORK_BYTES_PER_S.high, sent / NETWORK_BYTES_PER_S.low)
    return [*limits, Limit(NETWORK, network, "assumed: 0.1 to 1 GB per second at the driver")]


def slowest(limits: Sequence[Limit]) -> Estimate:
    """How long a pass takes that has these limits, which overlap."""
    seconds = NOTHING
    for limit in limits:
        seconds = seconds.at_least(limit.seconds)
    return Estimate(seconds, bottleneck(limits).basis if limits else "nothing is to be encoded")


def bottleneck(limits: Sequence[Limit]) -> Limit:
    """The one that takes longest."""
    return max(limits, key=lambda limit: limit.seconds.middle)


def useful_nodes(one_node: Range, units: int, limits: Sequence[Limit]) -> int:
    """From how many nodes on more of them do not help: another limit is reached, or there is nothing left for them."""
    others = [limit.seconds.middle for limit in limits if limit.what != NODES]
    most = max(others, default=0.0)
    by_limits = math.ceil(one_node.middle / most) if most > 0 else units
    return max(1, min(units, by_limits))
