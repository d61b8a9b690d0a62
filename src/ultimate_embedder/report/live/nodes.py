"""The nodes of a cluster: which take part, which are lost, which were refused."""

from __future__ import annotations

from dataclasses import replace

from ultimate_embedder import events
from ultimate_embedder.execution import NODE_LOST
from ultimate_embedder.report.live.recent import whole
from ultimate_embedder.report.live.rows import NodeRow
from ultimate_embedder.report.live.sentences import shown
from ultimate_embedder.types import node_of

MOST_NODES = 256


class Nodes:
    """Folds what happens to nodes; what their devices do is with the devices."""

    def __init__(self) -> None:
        self.left_out = 0
        self._rows: dict[str, NodeRow] = {}

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        match event:
            case events.NodeJoined():
                devices = tuple(shown(each.hardware) for each in event.devices[:MOST_NODES])
                about = {"host": shown(event.host), "cores": whole(event.cores), "dtype": shown(event.dtype)}
                self._change(event.node, state="at work", why=None, address=event.address, devices=devices, **about)
            case events.NodeRefused():
                self._change(event.node, state="refused", why=shown(event.reason), address=event.address)
            case events.Mitigated() if event.kind == NODE_LOST.kind and isinstance(event.details.get("device"), str):
                name = event.details["device"]
                lost = self._rows[name].lost if name in self._rows else 0
                why = shown(event.details.get("reason") or "it is gone")
                self._change(name, state="lost", why=why, lost=lost + max(1, whole(event.times)))
            case events.LeaseAcquired():  # a process that was started again has nothing else to say
                for name in {node_of(device) for device in event.devices[:MOST_NODES]}:
                    if name is not None and name in self._rows:
                        self._change(name, state="at work", why=None)
            case _:
                pass

    def rows(self) -> tuple[NodeRow, ...]:
        """All nodes, in the order in which they were first heard of."""
        return tuple(self._rows.values())

    def _change(self, name: str, **changes: object) -> None:
        if name not in self._rows and len(self._rows) >= MOST_NODES:
            self.left_out += 1
            return
        if "address" in changes:
            changes["address"] = shown(changes["address"])
        row = self._rows.get(name) or NodeRow(shown(name))
        self._rows[name] = replace(row, **changes)  # type: ignore[arg-type]
