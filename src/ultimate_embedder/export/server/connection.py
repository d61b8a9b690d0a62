"""Connect to Qdrant: HTTP for everything, and gRPC for the points if it was asked for."""

from __future__ import annotations

import base64
import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from grpc import (  # type: ignore[import-untyped]
    insecure_channel,
    intercept_channel,
    secure_channel,
    ssl_channel_credentials,
)
from qdrant_client import QdrantClient, grpc
from qdrant_client.connection import header_adder_interceptor, parse_channel_options

from ultimate_embedder.errors import UsageError
from ultimate_embedder.export.server.options import EXAMPLE_URL, ServerAddress, UploadConfig

TIMEOUT_S = 60
Address = ServerAddress | UploadConfig


@dataclass(frozen=True)
class Connection:
    """The ways to a server."""

    http: QdrantClient
    grpc: grpc.PointsStub | None
    """Takes the points, if there is one."""
    timeout_s: float


@contextlib.contextmanager
def connect(config: Address) -> Iterator[Connection]:
    """Open the connections; nothing is sent yet."""
    headers = _headers(config)
    trusted = _trusted(config)
    with contextlib.ExitStack() as stack:
        client = _http(config, headers, trusted)
        stack.callback(client.close)
        stub = None
        if config.grpc_port is not None:
            channel = _channel(config, config.grpc_port, headers)
            stack.callback(channel.close)
            stub = grpc.PointsStub(channel)  # type: ignore[no-untyped-call]
        yield Connection(client, stub, TIMEOUT_S)


def _headers(config: Address) -> dict[str, str]:
    if config.user is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(unquote(config.user).encode()).decode()}"}


def _trusted(config: Address) -> dict[str, Any]:
    if config.ca_cert is None:
        return {}
    try:
        return {"verify": ssl.create_default_context(cafile=str(config.ca_cert))}
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"--ca-cert {config.ca_cert} has no certificates in PEM format ({error}).") from error


def _http(config: Address, headers: dict[str, str], trusted: dict[str, Any]) -> QdrantClient:
    try:
        return QdrantClient(
            url=config.url,
            api_key=config.api_key,
            timeout=TIMEOUT_S,
            check_compatibility=False,
            metadata=headers,
            **trusted,
        )
    except ValueError as error:  # urllib3's LocationParseError is one too
        raise UsageError(f"--url {config.url}: {error}. Write {EXAMPLE_URL}, for example.") from error


def _channel(config: Address, port: int, headers: dict[str, str]) -> Any:
    """A channel as qdrant-client makes it, but with the user's certificates, which its older versions do not take."""
    sent = [(name.lower(), value) for name, value in headers.items()]
    if config.api_key is not None:
        sent.append(("api-key", config.api_key))
    host = urlsplit(config.url if "://" in config.url else f"//{config.url}").hostname or "localhost"
    options = parse_channel_options()
    if config.url.lower().startswith("https://"):
        trusted = config.ca_cert.read_bytes() if config.ca_cert is not None else None
        channel = secure_channel(f"{host}:{port}", ssl_channel_credentials(trusted), options)
    else:
        channel = insecure_channel(f"{host}:{port}", options)
    return intercept_channel(channel, header_adder_interceptor(sent))
