"""Connect to a Ray cluster, or start one on this machine, without Ray taking over output and signals."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import UsageError
from ultimate_embedder.machine import usable_cores

LOCAL = "local"
AUTO = "auto"
ANSWER_S = 10.0  # for a connection to a cluster; Ray itself tries for many minutes
OBJECT_STORE_BYTES = 256 << 20  # of a node on this machine: some units and results at a time
NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}  # nothing is sent to anybody
ENVIRONMENT = {
    **NO_STATISTICS,
    "RAY_AUTH_MODE": "disabled",  # only this machine can connect, and no token is written to the user's home
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else loopback is taken for the outer address of the machine
}
SYSTEM = {"worker_niceness": 0}  # else our processes wait behind everything else on the machine
START_ONE = "Start one with 'ray start --head', name one with --ray-address HOST:PORT, or use --ray-address local"
HINT = (
    "A cluster with token authentication needs RAY_AUTH_MODE=token and the token in RAY_AUTH_TOKEN, or in the file "
    "that RAY_AUTH_TOKEN_PATH names."
)


def require_ray() -> None:
    """Say what to install where Ray is missing."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("--engine ray needs Ray. Install it with: pip install 'ultimate-embedder[ray]'")


@contextlib.contextmanager
def connected(address: str, nodes: int | None = None) -> Iterator[None]:
    """A connection as long as the block lasts: `auto`, HOST:PORT, or `local` for a cluster of this machine alone.

    A process that is connected already, as a notebook may be, stays so.
    """
    require_ray()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment(ENVIRONMENT if address == LOCAL else NO_STATISTICS))
        import ray  # it reads the environment

        if ray.is_initialized():
            yield
            return
        if address == LOCAL:
            address = stack.enter_context(_local_cluster(nodes or 1))
        elif address != AUTO and _is_on_loopback(address):
            stack.enter_context(_loopback())
        with _own_signals():
            _connect(address)
        stack.callback(ray.shutdown)
        yield


def _is_on_loopback(address: str) -> bool:
    """Whether a cluster can be reached by this machine alone; raises if nothing answers at all.

    Ray takes 127.0.0.1 for the machine's outer address, where such a cluster does not listen.
    """
    from ray._private import services

    outer: Any = services  # without annotations
    host, _, port = address.rpartition(":")
    places = [outer.get_node_ip_address(), host] if host in ("127.0.0.1", "localhost") else [host]
    for place in places:
        with contextlib.suppress(OSError), socket.create_connection((place, int(port)), ANSWER_S):
            return place != places[0]
    raise UsageError(f"--ray-address {address}: nothing answers there. 'ray status' there tells more. {HINT}")


def _connect(address: str) -> None:
    import ray
    import ray._private.worker as private

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if address == AUTO and isinstance(error, ConnectionError) and "Could not find" in reason:
            reason = f"no cluster was found. {START_ONE}"
        raise UsageError(f"--ray-address {address}: {reason.rstrip('.')}. {HINT}") from error
    if hasattr(private, "_worker_logs_enabled"):
        private._worker_logs_enabled = False  # else lines of Ray's processes are written to our standard output


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Have the handlers of before back afterwards: Ray puts its own over them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that Ray and its processes see, and nobody afterwards; what the user has set stays."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Have 127.0.0.1 mean itself, also where Ray was imported before its variable was set."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _local_cluster(nodes: int) -> Iterator[str]:
    """A head without resources and some nodes that share the cores of this machine; gives its address."""
    folder = tempfile.mkdtemp(prefix="ray")  # short: the path of a socket has at most 107 characters
    Path(folder, "ray").mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(_environment({"RAY_TMPDIR": folder}))
        stack.enter_context(_loopback())
        from ray.cluster_utils import Cluster

        common: dict[str, Any] = {
            "node_ip_address": "127.0.0.1",
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "temp_dir": os.environ["RAY_TMPDIR"],
        }
        with _own_signals():
            cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": SYSTEM, **common})
            stack.callback(cluster.shutdown)
            cores = max(1, usable_cores() // nodes)
            for _ in range(nodes):
                cluster.add_node(num_cpus=cores, **common)
        yield str(cluster.address)
