"""Leases whose events all go to one place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from ultimate_embedder.devices import Device, Lease, Leases
from ultimate_embedder.events import Emit


class ReportingLeases:
    """What tests use as they would use `Leases`, without naming the sink of events each time."""

    def __init__(self, emit: Emit) -> None:
        self.all = Leases()
        self._emit = emit

    def lease(self, owner: str, devices: Sequence[Device], **options: Any) -> AbstractContextManager[Lease]:
        return self.all.lease(owner, devices, self._emit, **options)

    def close(self) -> None:
        self.all.close(self._emit)
