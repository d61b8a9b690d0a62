"""Vectors that are computed, and lie on a node that dies before they were fetched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.experimental import get_object_locations

from tests.cluster.bulky import BulkyNode
from tests.cluster.conftest import TEXTS
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.runs import Recorded, config_for, embed_on, stored_rows, worst_cosine
from tests.cluster.test_cluster import CLOSE, kinds, statuses
from ultimate_embedder.events import Mitigated
from ultimate_embedder.execution.cluster import ray_cluster
from ultimate_embedder.execution.cluster.ray_cluster import RayCluster

pytestmark = pytest.mark.slow


class LosesAnObject(RayCluster):
    """Kills the node that holds the first large answer when it is ready, before it is fetched."""

    cluster: LocalCluster
    has_lost = False

    def wait(self, tickets: Sequence[Any], timeout_s: float) -> Sequence[Any]:
        if self.has_lost:
            return super().wait(tickets, timeout_s)
        ready, _ = ray.wait(list(tickets), num_returns=1, timeout=timeout_s, fetch_local=False)
        places = get_object_locations(ready)
        for ticket in ready:
            if nodes := places[ticket]["node_ids"]:  # small answers are on no node
                self.has_lost = True
                self.cluster.remove(self.cluster.find(nodes[0]))
        return ready


def test_vectors_on_a_node_that_dies_before_they_are_fetched_are_computed_again(
    cluster: LocalCluster,
    texts: Path,
    model: Path,
    reference: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_cluster, "Node", BulkyNode)
    monkeypatch.setattr(ray_cluster, "RayCluster", LosesAnObject)
    monkeypatch.setattr(LosesAnObject, "cluster", cluster, raising=False)
    recorded = Recorded()
    try:
        embed_on(config_for(texts, tmp_path / "out", cluster.address, models=str(model)), recorded)
    finally:
        cluster.add()  # in place of the one that was killed
    assert statuses(recorded) == [("completed", None)]
    assert stored_rows(tmp_path / "out")[:2] == (TEXTS, 0)
    assert worst_cosine(tmp_path / "out", reference) > 1 - CLOSE
    assert kinds(recorded) == ["answer_lost", "node_lost"]
    lost = recorded.of(Mitigated)[0].details
    assert lost["reason"] == "ObjectReconstructionFailedError: no node has a copy any more"
