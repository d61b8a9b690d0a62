"""Make every worker of a pass take a batch: on fast machines one may have done all the work before another begins."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ultimate_embedder.execution.worker import Worker

PATIENCE_S = 30.0


def make_all_work(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model's first batch on a device waits until `count` devices have one."""
    started: dict[str, set[str]] = {}
    changed = threading.Condition()
    start = Worker.start

    def start_together(worker: Worker, *batch: Any) -> Any:
        with changed:
            devices = started.setdefault(worker.model_name, set())
            devices.add(worker.device.name)
            changed.notify_all()
            changed.wait_for(lambda: len(devices) >= count, PATIENCE_S)
        return start(worker, *batch)

    monkeypatch.setattr(Worker, "start", start_together)
