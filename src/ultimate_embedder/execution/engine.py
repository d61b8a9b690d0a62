"""Where a run computes: on this machine, or on the nodes of a cluster. A run opens one, and asks it for executors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Protocol

from ultimate_embedder.config import RunConfig
from ultimate_embedder.events import Emit
from ultimate_embedder.execution.executor import Executor
from ultimate_embedder.execution.local import LocalExecutor
from ultimate_embedder.session import ModelsWithoutWeights, Session, open_session, session_with
from ultimate_embedder.stop import StopSwitch


class Engine(Protocol):
    """A session, and executors for the collections of a run."""

    @property
    def session(self) -> Session:
        """What the run holds open."""
        ...

    def executor_for(self, collection: str) -> Executor:
        """What carries out the steps of a collection."""
        ...


class LocalEngine:
    """The devices of this machine."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def executor_for(self, collection: str) -> Executor:
        """The devices that the collection may use."""
        return LocalExecutor(self.session, self.session.devices_for(collection))


@contextlib.contextmanager
def open_engine(config: RunConfig, emit: Emit, stop: StopSwitch, session: Session | None = None) -> Iterator[Engine]:
    """The engine that the options name; `session` may hold devices and models that an earlier run has opened."""
    if session is not None:
        yield LocalEngine(session.for_run(config, emit, stop))
    elif config.engine == "ray":
        with _open_cluster(config, emit, stop) as engine:
            yield engine
    else:
        yield LocalEngine(open_session(config, emit, stop))


@contextlib.contextmanager
def _open_cluster(config: RunConfig, emit: Emit, stop: StopSwitch) -> Iterator[Engine]:
    from ultimate_embedder.execution.cluster.connection import connected

    with connected(config.ray_address, config.ray_nodes):
        # these import Ray
        from ultimate_embedder.execution.cluster.dispatch import Patience
        from ultimate_embedder.execution.cluster.executor import ClusterEngine, ClusterOptions
        from ultimate_embedder.execution.cluster.facts import versions
        from ultimate_embedder.execution.cluster.ray_cluster import RayCluster, RayShipper
        from ultimate_embedder.execution.cluster.roster import Roster

        roster = Roster(RayCluster(config), versions(), emit)
        options = ClusterOptions(
            Patience(config.unit_timeout_s, config.ray_wait_s),
            shared_output=config.shared_output,
            ship=(lambda plan: RayShipper(plan.model)) if config.ship_models else None,
        )
        make_session = partial(session_with, config=config, emit=emit, stop=stop, loaded=ModelsWithoutWeights())
        try:
            yield ClusterEngine(roster, options, make_session, config, stop)
        finally:
            roster.close()
