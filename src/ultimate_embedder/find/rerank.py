"""Sort hits with a reranker, and say what it cost and what it changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from ultimate_embedder.devices import Device, Leases, MemoryLimits, open_devices
from ultimate_embedder.events import Emit, Event, Mitigated, Warned
from ultimate_embedder.execution import RerankModel
from ultimate_embedder.find.hits import Hit, Reranked
from ultimate_embedder.find.options import SearchPlace
from ultimate_embedder.models import resolve_reranker

EVENT_NAME = "rerank"  # in place of a collection


class Rerankers:
    """Rerankers by name: each is found and loaded when it is first wanted. They share devices and leases."""

    def __init__(self, wanted: SearchPlace, emit: Emit) -> None:
        self._wanted = wanted
        self._emit = emit
        self._leases = Leases()
        self._devices: list[Device] = []
        self._models: dict[str, RerankModel] = {}

    def load(self, name: str) -> RerankModel:
        """A reranker, loaded on the host."""
        if name not in self._models:
            wanted = self._wanted
            found = resolve_reranker(name, wanted.hub, self._emit)  # before torch is imported for the devices
            model = RerankModel(found, wanted.hub.trusted, self._open_devices(), self._leases, wanted.precision)
            model.load(self._emit)
            self._models[name] = model
        return self._models[name]

    def close(self) -> None:
        """Leave the devices as they were found."""
        self._leases.close(self._emit)
        for device in self._devices:
            device.lift_ceiling()

    def _open_devices(self) -> list[Device]:
        if not self._devices:
            self._devices = open_devices(
                self._wanted.devices,
                MemoryLimits(),
                report=lambda message: self._emit(Warned(message=message)),
            )
        return self._devices


def reorder(question: str, hits: Sequence[Hit], model: RerankModel, top: int, emit: Emit) -> tuple[list[Hit], Reranked]:
    """All hits in the order of the reranker's scores; of equal scores the better one before is first."""
    started = time.perf_counter()
    mitigations: dict[str, None] = {}

    def listen(event: Event) -> None:
        if isinstance(event, Mitigated):
            mitigations[event.kind] = None
        emit(replace(event, collection=EVENT_NAME))

    found = model.score(question, [hit.text for hit in hits], listen)
    order = sorted(range(len(hits)), key=lambda place: (-float(found.scores[place]), place))
    sorted_hits = [
        replace(hits[place], rank=rank, score=float(found.scores[place]), rank_before=hits[place].rank)
        for rank, place in enumerate(order, 1)
    ]
    shown = sorted_hits[:top]
    return sorted_hits, Reranked(
        model=model.name,
        device=found.device,
        dtype=found.dtype,
        pairs=len(hits),
        tokens=found.tokens,
        truncated=found.truncated,
        batches=found.batches,
        seconds=time.perf_counter() - started,
        moved_up=sum(hit.rank < (hit.rank_before or 0) for hit in shown),
        moved_down=sum(hit.rank > (hit.rank_before or 0) for hit in shown),
        new_in_top=sum((hit.rank_before or 0) > top for hit in shown),
        mitigations=tuple(mitigations),
    )
