"""A Ray cluster of several nodes on this machine, on loopback, whose nodes can be killed, frozen and added."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from ultimate_embedder.execution.cluster.connection import ENVIRONMENT

REPOSITORY = Path(__file__).resolve().parents[2]
FAST_DEATH = {
    "worker_niceness": 0,
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}
NODE = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20, "include_dashboard": False}


class LocalCluster:
    """A head without resources, and nodes of one core each."""

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": FAST_DEATH, **self._node()}
        )
        self.nodes: list[Any] = []

    def _node(self, **environment: str) -> dict[str, Any]:
        variables = {"HF_HUB_CACHE": str(self.models), **environment}
        return {**NODE, "temp_dir": self._folder, "env_vars": variables}

    @property
    def models(self) -> Path:
        """Where nodes look for downloaded models."""
        return Path(self._folder, "models")

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: int = 1, **environment: str) -> Any:
        """Another node; its processes see these variables."""
        node = self._cluster.add_node(num_cpus=cpus, **self._node(**environment))
        self.nodes.append(node)
        return node

    def remove(self, node: Any) -> None:
        """Kill a node with all its processes."""
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def find(self, node_id: str) -> Any:
        """The node that the cluster calls so."""
        return next(node for node in self.nodes if node.node_id == node_id)

    def signal_worker(self, node_id: str, number: signal.Signals) -> int:
        """Signal the process of ours on a node, a child of its raylet; gives how many there were."""
        raylet = self.find(node_id).all_processes["raylet"][0].process.pid
        sent = 0
        for child in psutil.Process(raylet).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if any("Node" in word for word in child.cmdline()):
                    os.kill(child.pid, number)
                    sent += 1
        return sent

    def close(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def local_cluster(nodes: int) -> Iterator[LocalCluster]:
    """A cluster with so many nodes of one core, as long as the block lasts."""
    folder = tempfile.mkdtemp(prefix="ray")  # short: a socket's path may have 107 characters
    # nodes must be able to import the classes of tests
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    os.environ.update(ENVIRONMENT, RAY_TMPDIR=folder, PYTHONPATH=path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    Path(folder, "ray").mkdir()
    cluster = LocalCluster(folder)
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for _ in range(nodes):
            cluster.add()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
