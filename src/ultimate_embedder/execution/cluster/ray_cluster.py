"""The one module that knows Ray: processes on its nodes, and what its errors mean."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray as typed_ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ultimate_embedder.config import RunConfig
from ultimate_embedder.execution.cluster.node import Node
from ultimate_embedder.execution.cluster.roster import AnswerLostError, FoundNode, LostError, NodeError, Ticket
from ultimate_embedder.execution.cluster.units import PassOrder, Unit
from ultimate_embedder.models import ModelFile, ModelFiles
from ultimate_embedder.types import ResolvedModel

ray: Any = typed_ray  # its annotations know neither actors with options nor its own dictionaries
THREADS = 5  # of a process on a node: two units, its progress, and whatever ends or begins a pass
WITHOUT_CARDS = ("cpu", "simulated")
PACKAGE = "ultimate_embedder"
NOT_INSTALLED = "ultimate-embedder is not installed there: pip install 'ultimate-embedder[ray]'"


@dataclass(frozen=True)
class Claim:
    """What our process takes of a node: all that is free when it is first seen."""

    cpus: int
    gpus: int


class RayHandle:
    """Our process on a node: a Ray actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def describe(self) -> Ticket:
        """For `NodeFacts`."""
        return self._actor.describe.remote()

    def begin(self, order: PassOrder) -> Ticket:
        """For `PassFacts`."""
        return self._actor.begin.remote(order)

    def encode(self, unit: Unit) -> Ticket:
        """For a `UnitResult`."""
        return self._actor.encode.remote(unit)

    def progress(self) -> Ticket:
        """For `Progress`."""
        return self._actor.progress.remote()

    def finish(self) -> Ticket:
        """For events."""
        return self._actor.finish.remote()

    def stop(self, reason: str) -> None:
        """Finish what is under way, and no more."""
        self._actor.stop.remote(reason)

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(RayError, ValueError):  # it is gone already
            ray.kill(self._actor)


class RayCluster:
    """The nodes of the cluster that this process is connected to."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._claims: dict[str, Claim] = {}
        # no restarts and no retries of Ray's: what is lost is given to another node, with the state that we know
        self._class = ray.remote(max_restarts=0, max_task_retries=0, max_concurrency=THREADS)(Node)

    def find_nodes(self) -> Sequence[FoundNode]:
        """Nodes that are alive and have room for our process, or have it already."""
        free = _free_resources()
        found = []
        for node in ray.nodes():
            name = node["NodeID"]
            if not node["Alive"]:
                self._claims.pop(name, None)
                continue
            if name not in self._claims:
                claim = self._claim(free.get(name, node["Resources"]))
                if claim is None:
                    continue
                self._claims[name] = claim
            found.append(FoundNode(name, node["NodeManagerAddress"]))
        return found

    def _claim(self, free: Mapping[str, float]) -> Claim | None:
        cpus, gpus = int(free.get("CPU", 0)), int(free.get("GPU", 0))
        if self._config.devices.split(":")[0] in WITHOUT_CARDS:
            gpus = 0
        return Claim(cpus, gpus) if cpus >= 1 else None

    def start(self, node: FoundNode) -> RayHandle:
        """An actor on this very node."""
        claim = self._claims[node.id]
        options = self._class.options(
            num_cpus=claim.cpus,
            num_gpus=claim.gpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        # with no card claimed Ray hides none: a process that has none must not use those of others
        devices = "cpu" if not claim.gpus and self._config.devices == "auto" else self._config.devices
        return RayHandle(options.remote(dataclasses.replace(self._config, devices=devices, chunks=()), claim.cpus))

    def wait(self, tickets: Sequence[Ticket], timeout_s: float) -> Sequence[Ticket]:
        """Those whose answers are there."""
        ready, _ = ray.wait(list(tickets), num_returns=1, timeout=timeout_s)
        if not ready:
            return []
        ready, _ = ray.wait(list(tickets), num_returns=len(tickets), timeout=0)
        return list(ready)

    def answer(self, ticket: Ticket) -> Any:
        """An answer, or one of our errors."""
        try:
            return ray.get(ticket)
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else None
            raise NodeError(_in_words(cause or error)) from cause
        except ActorDiedError as error:
            if PACKAGE in str(error) and "No module named" in str(error):
                raise NodeError(NOT_INSTALLED) from None
            raise LostError(_in_words(error)) from error
        except RuntimeEnvSetupError as error:
            raise NodeError(_in_words(error)) from error
        except (ObjectLostError, GetTimeoutError) as error:
            raise AnswerLostError(_in_words(error)) from error
        except RayError as error:
            raise LostError(_in_words(error)) from error


class RayShipper:
    """Gives nodes the files of a model that only the driver's machine has: from a process there, piece by piece."""

    def __init__(self, model: ResolvedModel) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._actor = ray.remote(num_cpus=0, scheduling_strategy=here)(ModelFiles).remote(model)

    def files(self) -> Sequence[ModelFile]:
        """All files, with their checksums."""
        found: Sequence[ModelFile] = ray.get(self._actor.files.remote())
        return found

    def piece(self, name: str, offset: int) -> bytes:
        """Some bytes of a file."""
        content: bytes = ray.get(self._actor.piece.remote(name, offset))
        return content


def _free_resources() -> Mapping[str, Mapping[str, float]]:
    """By node; Ray has no public call for it. What a node has in all is taken where this one is gone."""
    from ray._private import state

    found: Mapping[str, Mapping[str, float]] = getattr(state, "available_resources_per_node", dict)()
    return found


def _in_words(error: Exception) -> str:
    """The sentence that matters of a message with tracebacks and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, ObjectLostError):  # Ray's own words are about retries, which are not wanted here
        return f"{type(error).__name__}: no node has a copy any more"
    if isinstance(error, RayActorError):
        said = [line for line in lines if line.startswith(("The actor died", "The actor is", "The actor", "Worker"))]
        lines = said or lines
        return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    if isinstance(error, RayError):
        return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return " ".join(lines) or type(error).__name__
