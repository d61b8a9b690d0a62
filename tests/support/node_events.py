"""The events of a run on a cluster that was never made: one node stays, one is lost and comes back, one is refused."""

from __future__ import annotations

from typing import Any

from ultimate_embedder import events
from ultimate_embedder.summary import RunOptions
from ultimate_embedder.types import DeviceFacts, MemorySnapshot

GB = 1_000_000_000
START = 1_700_000_000.0
LOST = "The actor died: its node was terminated"
REFUSED = "python is 3.12.1 there and 3.11.2 here"


def joined(node: str, at: float, cards: int = 2, **changes: Any) -> events.NodeJoined:
    """A node with some T4s."""
    fields: dict[str, Any] = {
        "node_id": f"id-of-{node}",
        "address": "10.0.0.5",
        "host": f"host-of-{node}",
        "devices": tuple(DeviceFacts(f"cuda:{card}", "Tesla T4", 1, 16 * GB, 14 * GB) for card in range(cards)),
        "cores": 8,
        "dtype": "float16",
        "versions": {"python": "3.11.2", "ray": "2.60.0"},
    }
    return events.NodeJoined(timestamp=START + at, node=node, **{**fields, **changes})


def lost(node: str, at: float, rows: int = 2048) -> events.Mitigated:
    """The process of a node is gone."""
    details = {"device": node, "reason": LOST, "rows": rows, "units": 2}
    return events.Mitigated(timestamp=START + at, collection="docs", kind="node_lost", details=details)


def refused(node: str, at: float, reason: str = REFUSED) -> events.NodeRefused:
    """A node may not take part."""
    return events.NodeRefused(timestamp=START + at, node=node, address="10.0.0.9", reason=reason)


def lease(node: str, at: float, cards: int = 2, kind: type[Any] = events.LeaseAcquired) -> Any:
    """A node leases its cards to the model, or releases them."""
    devices = [f"{node}/cuda:{card}" for card in range(cards)]
    common: dict[str, Any] = {"timestamp": START + at, "collection": "docs", "model": "minilm", "model_pass": 0}
    common |= {"devices": devices, "memory": [_memory(device) for device in devices], "lease_id": f"{node}/1"}
    if kind is events.LeaseAcquired:
        return kind(**common, waited_seconds=0.0, evicted=[], saved_bytes=0, saved_seconds=0.0)
    return kind(**common, moving_seconds=0.0, leftovers=[], placement="replicas", kept_bytes=0)


def batch(device: str, at: float, texts: int = 100) -> events.BatchEncoded:
    """A batch that took a second."""
    return events.BatchEncoded(
        timestamp=START + at,
        collection="docs",
        model="minilm",
        model_pass=0,
        batch_index=0,
        device=device,
        dtype="float16",
        rows=texts,
        texts=texts,
        planned_rows=texts,
        tokens=50 * texts,
        padded_tokens=60 * texts,
        longest=60,
        bad_rows=0,
        packed=False,
        fp32_rows=0,
        predicted_bytes=0,
        measured_bytes=0,
        wait_seconds=0.0,
        forward_seconds=1.0,
        memory_before=_memory(device),
        memory=_memory(device),
    )


def cluster_run() -> list[events.Event]:
    """A run on three nodes, of which the last joins late and the second is lost once; a fourth is refused."""
    devices = ["node-1/cuda:0", "node-1/cuda:1", "node-2/cuda:0", "node-2/cuda:1"]
    opened = [
        events.DeviceOpened(
            timestamp=START + 1, device=name, total_bytes=16 * GB, ceiling_bytes=14 * GB, ceiling_reason="margin"
        )
        for name in devices
    ]
    return [
        events.RunStarted(timestamp=START, options=RunOptions(), chunks="chunks", output="out"),
        refused("node-4", 0.5),
        joined("node-1", 1.0),
        joined("node-2", 1.0),
        *opened,
        events.CollectionStarted(timestamp=START + 2, collection="docs", files=1),
        events.ModelResolved(
            timestamp=START + 2,
            model="minilm",
            hub_id=None,
            revision="1",
            source="package",
            path="minilm",
            digest="d" * 64,
            size_bytes=1,
            seconds=0.0,
            retries=0,
            note="",
        ),
        events.PassStarted(
            timestamp=START + 3,
            collection="docs",
            weight=1.0,
            devices=devices,
            dtype="float16",
            fingerprint="aa",
            texts=1000,
            stored_texts=0,
            model="minilm",
            model_pass=0,
        ),
        lease("node-1", 3.5),
        lease("node-2", 3.5),
        batch("node-1/cuda:0", 5.0, 100),
        batch("node-2/cuda:1", 5.5, 200),
        lost("node-2", 6.0),
        joined("node-3", 7.0, 1),
        lease("node-3", 7.5, 1),
        batch("node-3/cuda:0", 9.0, 300),
        lease("node-2", 9.5),
        batch("node-2/cuda:0", 10.0, 400),
    ]


def _memory(device: str) -> MemorySnapshot:
    return MemorySnapshot(device, 16 * GB, 13 * GB, GB, GB, GB, 2 * GB, GB, 14 * GB)
