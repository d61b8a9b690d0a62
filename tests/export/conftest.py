"""What tests of exports share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from ultimate_embedder.child import Child
from ultimate_embedder.export import shard


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The processes that have been started for shards."""
    started: list[Child] = []
    start = shard.start_edge

    @contextlib.contextmanager
    def watched() -> Iterator[Child]:
        with start() as child:
            started.append(child)
            yield child

    monkeypatch.setattr(shard, "start_edge", watched)
    return started
