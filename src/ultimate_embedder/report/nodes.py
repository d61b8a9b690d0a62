"""The nodes of a cluster in a summary: what each is, what became of it, and what it has done."""

from __future__ import annotations

import dataclasses

from ultimate_embedder import events
from ultimate_embedder.execution import NODE_LOST
from ultimate_embedder.summary import DeviceSummary, NodeLoss, NodeSummary
from ultimate_embedder.types import device_on, node_of

MOST_NODES = 10_000  # names come from a log, which may be damaged
MOST_LOSSES = 100  # of a node; `lost` counts all


class NodeTotals:
    """Folds what happens to nodes, and what they do."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeSummary] = {}

    @property
    def listed(self) -> list[NodeSummary]:
        """All nodes, in the order in which they were first heard of."""
        return list(self._nodes.values())

    def join(self, event: events.NodeJoined) -> list[DeviceSummary]:
        """A node takes part; gives its devices as those of the run."""
        named = [dataclasses.replace(each, name=device_on(event.node, each.name)) for each in event.devices]
        if node := self._of(event.node):
            node.node_id = event.node_id
            node.address, node.host, node.cores, node.dtype = event.address, event.host, event.cores, event.dtype
            node.devices, node.versions, node.differs = named, dict(event.versions), list(event.differs)
            node.joined_at = event.timestamp if node.joined_at is None else node.joined_at
            node.refused = None
        return [
            DeviceSummary(device=each.name, total_bytes=each.total_bytes, ceiling_bytes=each.ceiling_bytes)
            for each in named
        ]

    def refuse(self, event: events.NodeRefused) -> None:
        """A node may not take part, or not any longer."""
        if node := self._of(event.node):
            node.address, node.refused = event.address, event.reason

    def mitigate(self, event: events.Mitigated) -> None:
        """The process of a node may be lost."""
        name = event.details.get("device")
        if event.kind != NODE_LOST.kind or not isinstance(name, str) or (node := self._of(name)) is None:
            return
        node.lost += event.times
        if len(node.losses) < MOST_LOSSES:
            reason, texts = str(event.details.get("reason") or ""), event.details.get("rows")
            loss = NodeLoss(timestamp=event.timestamp, reason=reason, texts=texts if isinstance(texts, int) else 0)
            node.losses.append(loss)

    def add_batches(self, event: events.BatchesEncoded) -> None:
        """Batches that a device of a node has computed."""
        name = node_of(event.device)
        if name is not None and (node := self._of(name)):
            node.batches += event.batches
            node.texts += event.texts
            node.tokens += event.tokens

    def _of(self, name: str) -> NodeSummary | None:
        if name not in self._nodes and len(self._nodes) < MOST_NODES:
            self._nodes[name] = NodeSummary(node=name)
        return self._nodes.get(name)
