"""Several hosts on one machine: network namespaces with addresses of their own, on one switch, whose links can fail.

Needs root, Linux and `ip` (Debian: iproute2).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NETWORK = "10.77.0"  # within the namespaces alone: the machine itself has no address in it
END_S = 2.0


class NoNamespacesError(Exception):
    """Network namespaces cannot be made here; the message says why."""


@dataclass(frozen=True)
class Host:
    """A namespace with one link to the switch."""

    name: str
    namespace: str
    port: str
    """The switch's end of the link."""
    address: str

    def start(self, words: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
        """A process on this host."""
        variables = {**os.environ, **environment}
        return subprocess.Popen(["ip", "netns", "exec", self.namespace, *words], env=variables, text=True, **options)

    def is_running(self, program: str) -> bool:
        """Whether a process of this name runs here."""
        found = [Path("/proc", str(pid), "comm") for pid in _processes(self.namespace)]
        return any(path.exists() and path.read_text(encoding="utf-8").strip() == program for path in found)

    def end_all(self) -> None:
        """End whatever runs on this host."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + END_S
            for pid in _processes(self.namespace):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while _processes(self.namespace) and time.monotonic() < until:
                time.sleep(0.1)


class Network:
    """Hosts on one switch."""

    def __init__(self, names: Sequence[str]) -> None:
        mark = f"ue{os.getpid()}"
        self._switch = f"{mark}-switch"
        self.hosts = {
            name: Host(name, f"{mark}-{name}", f"p-{name}", f"{NETWORK}.{number}")
            for number, name in enumerate(names, 1)
        }

    def build(self) -> None:
        """Make the namespaces and their links."""
        _ip("netns", "add", self._switch)
        self._on_switch("link", "add", "bridge", "type", "bridge")
        self._on_switch("link", "set", "bridge", "up")
        for host in self.hosts.values():
            _ip("netns", "add", host.namespace)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            self._on_switch(
                *("link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            )
            self._on_switch("link", "set", host.port, "master", "bridge", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """End all that runs on the hosts, and remove them."""
        for host in self.hosts.values():
            host.end_all()
        for namespace in [self._switch, *(host.namespace for host in self.hosts.values())]:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)

    def cut(self, name: str) -> None:
        """Pull the cable of a host: packets vanish, and nobody is told."""
        self._on_switch("link", "set", self.hosts[name].port, "down")

    def mend(self, name: str) -> None:
        """Put the cable back."""
        self._on_switch("link", "set", self.hosts[name].port, "up")

    def throttle(self, name: str, rate: str) -> None:
        """Limit what a host receives and sends per second."""
        host = self.hosts[name]
        limit = ["root", "tbf", "rate", rate, "burst", "16kb", "latency", "400ms"]
        for namespace, device in ((self._switch, host.port), (host.namespace, "eth0")):
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, *limit)

    def _on_switch(self, *words: str) -> None:
        _ip("-n", self._switch, *words)


@contextlib.contextmanager
def network_of(*names: str) -> Iterator[Network]:
    """Hosts of these names as long as the block lasts; raises `NoNamespacesError` where they cannot be made."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NoNamespacesError(f"'{tool}' is not installed (Debian: apt-get install iproute2)")
    network = Network(names)
    try:
        try:
            network.build()
        except subprocess.CalledProcessError as error:
            raise NoNamespacesError(f"{' '.join(error.cmd)}: {str(error.stderr).strip()}") from error
        yield network
    finally:
        network.remove()


def _processes(namespace: str) -> list[int]:
    found = subprocess.run(["ip", "netns", "pids", namespace], check=False, capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
