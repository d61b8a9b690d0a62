"""Where a server listens, and the names by which a browser may address it."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass

from ultimate_embedder.errors import UsageError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Address:
    """An address of this machine, as it was given and as it was resolved."""

    host: str
    ip: str
    port: int
    family: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.ip).is_loopback

    @property
    def is_any(self) -> bool:
        """Whether it stands for all addresses of this machine."""
        return ipaddress.ip_address(self.ip).is_unspecified

    def url(self, port: int) -> str:
        """What to open in a browser, once the port is known."""
        host = self.host
        if self.is_any:
            host = socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def find_address(host: str, port: int) -> Address:
    """Resolve the address to listen at; raises `UsageError` if there is none of that name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE) if host.strip() else []
    except (OSError, UnicodeError):
        found = []
    if not found:
        raise UsageError(f"--host {host!r} is no address. Write 127.0.0.1 for this machine, or 0.0.0.0 for all.")
    family, _, _, _, place = min(found, key=lambda each: each[0] != socket.AF_INET)
    return Address(host.strip().strip("[]"), str(place[0]).partition("%")[0], port, int(family))


def bind(address: Address, folder: str) -> socket.socket:
    """Take the port; raises `UsageError` with the next command if that is not possible."""
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that was just stopped is no obstacle
    try:
        listener.bind((address.ip, address.port))
        listener.listen()  # now, or two servers could both take the port
    except OSError as error:
        listener.close()
        raise UsageError(_problem(address, error, folder)) from error
    return listener


def _problem(address: Address, error: OSError, folder: str) -> str:
    again = f"ultimate-embedder serve {folder}"
    if error.errno == errno.EADDRINUSE:
        other = f"{again} --port {address.port + 1 if address.port < 65535 else 0}"
        return f"port {address.port} of {address.host} is in use. Choose another: {other} (or --port 0)."
    if error.errno in NOT_HERE and address.port and address.port < 1024:
        return f"port {address.port} is not free for you ({error.strerror}). Choose one above 1023: {again} --port 8765"
    return f"--host {address.host} --port {address.port}: {error.strerror}. Choose another: {again} --host 127.0.0.1"


def allowed_names(address: Address, more: tuple[str, ...] = ()) -> frozenset[str]:
    """The names by which the server may be addressed, in lower case; IP addresses are judged by `is_allowed`."""
    own = () if address.is_loopback else (socket.gethostname(), socket.getfqdn())
    return frozenset(name.lower() for name in (*LOOPBACK_NAMES, address.host, address.ip, *own, *more))


def is_allowed(host: str | None, names: frozenset[str], *, any_ip: bool) -> bool:
    """Whether a `Host` header names this server: another name may be one that an attacker's DNS leads here.

    An IP address cannot be led elsewhere; `any_ip` accepts each, where a server listens at all of them.
    """
    name = host_name(host)
    if name is None:
        return False
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return any_ip


def host_name(host: str | None) -> str | None:
    """The name in a `Host` header, without its port, in lower case; None if it is malformed."""
    if not host:
        return None
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        well = bool(bracket) and (not rest or (rest[0] == ":" and rest[1:].isdigit()))
    else:
        name, colon, port = host.partition(":")
        well = bool(name) and (not colon or port.isdigit())
    return name.lower().removesuffix(".") if well else None
