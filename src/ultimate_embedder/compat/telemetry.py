"""The V4 telemetry, filled from the engine's events."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from ultimate_embedder import events
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.summary import TelemetrySummary
from ultimate_embedder.types import MemorySnapshot

GB = 1e9
CACHE_WORDS = {"download": "downloaded", "refresh": "refreshed"}
OLD_MITIGATIONS = {"adaptive_batch_reduce": "adaptive_batch_reduce_after_snapshot"}


class Telemetry:
    """An event sink with the lists that notebooks read; every run appends to them."""

    def __init__(self) -> None:
        self.gpu_lease_events: list[dict[str, Any]] = []
        self.mitigation_events: list[dict[str, Any]] = []
        self.cache_events: list[dict[str, Any]] = []
        self.batch_progress: list[dict[str, Any]] = []
        self.companion_device_map: dict[str, str] = {}
        self._lease_collections: list[str | None] = []  # of each lease event
        self._run_began = self.marks()
        self._lock = OrderedLock("telemetry", Rank.TELEMETRY)

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        with self._lock:
            self._take(event)

    def _take(self, event: events.Event) -> None:
        match event:
            case events.RunStarted():
                self._run_began = self.marks()
            case events.LeaseAcquired():
                self._lease(event, "acquire")
            case events.LeaseReleased():
                self._lease(event, "release")
            case events.Mitigated() | events.CompanionPlaced():
                self._mitigation(OLD_MITIGATIONS.get(event.kind, event.kind), event, event.details)
            case events.ModelMissing():
                self._mitigation("companion_missing", event, {"model": event.model, "reason": event.why})
            case events.PassStarted():
                details = {"model": event.model, "device": ", ".join(event.devices), "aggregation_weight": event.weight}
                self._mitigation("ensemble_pass_started", event, details)
                self._note_companion(event)
            case events.PassFinished():
                details = {
                    "model": event.model,
                    "device": ", ".join(sorted(event.devices)),
                    "duration": event.seconds,
                    "rows": event.rows,
                    "batch_size": event.batch_rows,
                    "aggregation_weight": event.weight,
                }
                self._mitigation("ensemble_pass_completed", event, details)
                self._note_companion(event)
            case events.ModelResolved():
                self.cache_events.append(
                    {
                        "model_id": event.hub_id or event.model,
                        "path": event.path,
                        "revision": event.revision,
                        "status": CACHE_WORDS.get(event.source, "cache_hit"),
                        "timestamp": event.timestamp,
                    }
                )
            case events.BatchEncoded():
                self.batch_progress.append(
                    {
                        "model_pass": event.model_pass,
                        "batch_index": event.batch_index,
                        "model": event.model,
                        "device": event.device,
                        "rows": event.rows,
                        "timestamp": event.timestamp,
                    }
                )
            case _:
                pass

    def _lease(self, event: events.LeaseAcquired | events.LeaseReleased, kind: str) -> None:
        self._lease_collections.append(event.collection)
        self.gpu_lease_events.append(
            {
                "timestamp": event.timestamp,
                "event_type": kind,
                "model": event.model,
                "device_ids": [device_id(name) for name in event.devices],
                "vram": {device_id(now.device): gigabytes(now) for now in event.memory},
            }
        )

    def _mitigation(self, kind: str, event: events.Event, details: dict[str, Any]) -> None:
        place = {"collection": event.collection}
        self.mitigation_events.append({"type": kind, "timestamp": event.timestamp, **place, **details})

    def _note_companion(self, event: events.PassStarted | events.PassFinished) -> None:
        """Where a companion is to work, and where it has worked."""
        if event.model_pass and event.devices:
            self.companion_device_map[event.model] = ", ".join(sorted(event.devices))

    def record(self, kind: str, **details: Any) -> None:
        """Note a mitigation that the caller has seen to."""
        with self._lock:
            self.mitigation_events.append({"type": kind, "timestamp": time.time(), "collection": None, **details})

    def add(self, other: Telemetry) -> None:
        """Take over what another has collected."""
        with self._lock:
            for name, entries in self._lists().items():
                entries += other._lists()[name]
            self._lease_collections += other._lease_collections
            self.companion_device_map |= other.companion_device_map

    def of_collection(self, name: str) -> TelemetrySummary:
        """What the latest run has to do with one collection; what concerns the whole run is in each one's."""
        with self._lock:
            run = self.since(self._run_began)
            names = self._lease_collections[self._run_began["lease_events"] :]
            return TelemetrySummary(
                lease_events=[event for place, event in zip(names, run["lease_events"], strict=True) if place == name],
                mitigation_events=[event for event in run["mitigation_events"] if event["collection"] in (name, None)],
                cache_events=run["cache_events"],
            )

    def marks(self) -> dict[str, int]:
        """The current length of each list, to separate the entries of a run from earlier ones."""
        return {name: len(entries) for name, entries in self._lists().items()}

    def since(self, marks: dict[str, int]) -> dict[str, list[dict[str, Any]]]:
        """The entries after `marks`."""
        return {name: entries[marks[name] :] for name, entries in self._lists().items()}

    def _lists(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "lease_events": self.gpu_lease_events,
            "mitigation_events": self.mitigation_events,
            "cache_events": self.cache_events,
            "batch_progress": self.batch_progress,
        }


def device_id(name: str) -> int | str:
    """The number of a GPU, or `cpu`."""
    number = name.rpartition(":")[2]
    return int(number) if number.isdigit() else name


def gigabytes(now: MemorySnapshot) -> dict[str, float]:
    """Memory of a device in the words and the unit of the old telemetry."""
    names = {"allocated_gb": "allocated_bytes", "reserved_gb": "reserved_bytes"}
    names |= {"free_gb": "free_bytes", "total_gb": "total_bytes"}
    held = dataclasses.asdict(now)
    return {old: held[name] / GB for old, name in names.items()}
