"""The options of `upload`: name, type, default, help and check of each, in the signature of `make_upload_config`.

The command line, the fields of `UploadConfig` and the signature of the Python function `upload` are derived from it.
Annotations are evaluated here (no `from __future__ import annotations`), as they are read at run time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

from ultimate_embedder.config import (
    Option,
    at_least,
    parse_hnsw,
    qdrant_api_key_from_environment,
    qdrant_url_from_environment,
    read_options,
)
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export.payloads import PAYLOAD_NAMES, PLAIN, PayloadKind, payload_kind
from ultimate_embedder.export.points import LONGEST_NAME
from ultimate_embedder.export.server.layout import (
    INDEX_TYPES,
    QUANTIZATIONS,
    Layout,
    PayloadIndex,
    parse_payload_indexes,
)
from ultimate_embedder.names import name_problem
from ultimate_embedder.types import HnswGraph

PLACE = "where to"
SPEED = "speed"
EXISTING = "what is there already"
NEW = "new Qdrant collections"
UPLOAD_OUTPUT = "output"

BATCH_POINTS = 256
PARALLEL = 4
GRPC_PORT = 6334
LONGEST_NAME_BYTES = 4 * LONGEST_NAME  # the server counts characters
EXAMPLE_URL = "http://localhost:6333"


@dataclass(frozen=True)
class ServerAddress:
    """A Qdrant server, and how to be let in."""

    url: str
    """Without user and password."""
    user: str | None = field(default=None, repr=False)
    """User and password, as they were in the URL."""
    api_key: str | None = field(default=None, repr=False)
    ca_cert: Path | None = None
    grpc_port: int | None = None
    """None for HTTP."""


@dataclass(frozen=True)
class UploadConfig:
    """All options of an upload. The defaults are those of `make_upload_config`."""

    folder: Path
    url: str
    """Without user and password."""
    user: str | None = field(repr=False)
    """User and password, as they were in the URL."""
    api_key: str | None = field(repr=False)
    ca_cert: Path | None
    collection: str | None
    alias: str | None
    delete_old: bool
    grpc_port: int | None
    """None for HTTP."""
    batch_size: int
    parallel: int
    recreate: bool
    delete_removed: bool
    dry_run: bool
    layout: Layout
    payload: PayloadKind
    quiet: bool


def _folder(value: str | Path, option: str) -> Path:
    if not Path(value).is_dir():
        raise UsageError(f"{value} is not a folder. Give the --output of an earlier embed.")
    return Path(value)


def read_certificates(value: str | Path, option: str = "--ca-cert") -> Path:
    """A file of certificates."""
    if not Path(value).is_file():
        raise UsageError(f"{option} {value} is not a file. Give a file of certificates in PEM format.")
    return Path(value)


def _name(value: str, option: str) -> str:
    if problem := name_problem(value, longest_bytes=LONGEST_NAME_BYTES):
        raise UsageError(f"{option} {value!r} {problem}. Choose another name.")
    return value


def _payload(value: str, option: str) -> PayloadKind:
    return payload_kind(value)


def _port(value: int, option: str) -> int:
    if at_least(value, 1, option) > 65535:
        raise UsageError(f"{option} {value}: a port is at most 65535.")
    return value


def make_upload_config(
    folder: Annotated[
        str | Path,
        Option("the --output of embed, or one collection in it", PLACE, "DIR", positional=True, read=_folder),
    ],
    url: Annotated[
        str | None,
        Option(f"address of Qdrant, for example {EXAMPLE_URL}", PLACE, "URL", default="QDRANT_URL"),
    ] = None,
    *,
    collection: Annotated[
        str | None, Option("name in Qdrant", PLACE, "NAME", default="from collection and model", read=_name)
    ] = None,
    payload: Annotated[
        str,
        Option("payloads as other programs read them", PLACE, "SHAPE", choices=PAYLOAD_NAMES, read=_payload),
    ] = PLAIN.name,
    api_key: Annotated[str | None, Option("the API key", PLACE, only_in_python=True)] = None,
    api_key_env: Annotated[
        str | None,
        Option("environment variable that holds the API key", PLACE, "VAR", default="QDRANT_API_KEY, if it is set"),
    ] = None,
    ca_cert: Annotated[
        str | Path | None,
        Option(
            "trust the certificates in this file (PEM), such as those of your own CA",
            PLACE,
            "FILE",
            read=read_certificates,
        ),
    ] = None,
    grpc: Annotated[bool, Option("send points over gRPC; the rest stays HTTP", PLACE)] = False,
    grpc_port: Annotated[
        int | None, Option("port of gRPC; implies --grpc", PLACE, "N", default=str(GRPC_PORT), read=_port)
    ] = None,
    batch_size: Annotated[
        int,
        Option("points per request", SPEED, "N", default=str(BATCH_POINTS), read=partial(at_least, least=1)),
    ] = BATCH_POINTS,
    parallel: Annotated[
        int, Option("requests at the same time", SPEED, "N", default=str(PARALLEL), read=partial(at_least, least=1))
    ] = PARALLEL,
    recreate: Annotated[bool, Option("delete the Qdrant collection first, and create it anew", EXISTING)] = False,
    delete_removed: Annotated[
        bool, Option("delete points whose chunks are gone; otherwise they are counted", EXISTING)
    ] = False,
    alias: Annotated[
        str | None,
        Option("fill a new Qdrant collection, then let this alias point to it", EXISTING, "NAME", read=_name),
    ] = None,
    delete_old: Annotated[
        bool, Option("delete the Qdrant collection that --alias pointed to before", EXISTING)
    ] = False,
    quantization: Annotated[
        str | None, Option("compress vectors in memory", NEW, "METHOD", choices=tuple(QUANTIZATIONS))
    ] = None,
    on_disk: Annotated[bool, Option("keep vectors and payloads on disk, not in memory", NEW)] = False,
    hnsw: Annotated[
        str | bool | Mapping[str, int] | None,
        Option(
            "parameters of the search graph",
            NEW,
            "m=N,ef_construct=N",
            default=f"the server's; --hnsw alone: {HnswGraph()}",
            alone=str(HnswGraph()),
            read=parse_hnsw,
        ),
    ] = None,
    shards: Annotated[int | None, Option("number of shards", NEW, "N", read=partial(at_least, least=1))] = None,
    payload_index: Annotated[
        str | Iterable[str],
        Option(
            f"index a payload field, for filters; types: {', '.join(INDEX_TYPES)}. May be repeated",
            NEW,
            "FIELD:TYPE",
            read=parse_payload_indexes,
            repeatable=True,
        ),
    ] = (),
    dry_run: Annotated[
        bool, Option("compare with the server and say what would be done; change nothing", UPLOAD_OUTPUT)
    ] = False,
    quiet: Annotated[bool, Option("show no progress", UPLOAD_OUTPUT, short="-q")] = False,
) -> UploadConfig:
    """Turn the user's options into a valid `UploadConfig`, or raise a `UsageError` that says what is wrong."""
    values = read_options(make_upload_config, locals())
    if recreate and alias is not None:
        raise UsageError("--recreate and --alias contradict each other: --alias fills a new collection. Drop one.")
    if delete_old and alias is None:
        raise UsageError(
            "--delete-old is about the collection that an alias pointed to. Give --alias NAME, or drop it."
        )
    server = server_address(_url(url), api_key, api_key_env, values["ca_cert"])
    indexes: tuple[PayloadIndex, ...] = values["payload_index"]
    return UploadConfig(
        folder=values["folder"],
        url=server.url,
        user=server.user,
        api_key=server.api_key,
        ca_cert=server.ca_cert,
        collection=values["collection"],
        alias=values["alias"],
        delete_old=delete_old,
        grpc_port=values["grpc_port"] or (GRPC_PORT if grpc else None),
        batch_size=values["batch_size"],
        parallel=values["parallel"],
        recreate=recreate,
        delete_removed=delete_removed,
        dry_run=dry_run,
        layout=Layout(values["quantization"], on_disk, values["hnsw"], values["shards"], indexes),
        payload=values["payload"],
        quiet=quiet,
    )


def server_address(url: str, api_key: str | None, api_key_env: str | None, ca_cert: str | Path | None) -> ServerAddress:
    """A checked address: user and password out of the URL, the key from where it is."""
    if api_key is not None and api_key_env is not None:
        raise UsageError("api_key and api_key_env contradict each other. Drop one.")
    place, user = _without_user(url)
    trusted = read_certificates(ca_cert) if ca_cert is not None else None
    return ServerAddress(place, user, api_key or qdrant_api_key_from_environment(api_key_env), trusted)


def _url(given: str | None) -> str:
    if given is not None and not given.strip():
        raise UsageError(f"--url is empty. Write {EXAMPLE_URL}, for example.")
    url = given or qdrant_url_from_environment()
    if url is None:
        raise UsageError(f"--url is missing, and QDRANT_URL is not set. Write --url {EXAMPLE_URL}, for example.")
    return url


def _without_user(url: str) -> tuple[str, str | None]:
    """A URL without user and password, which are neither printed nor stored, and both in one word; None without any."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    user, at, place = rest.rpartition("@")
    if "/" in user:
        raise UsageError("--url has an @ after a /. In a user name or password write %40 for @, and %2F for /.")
    return f"{scheme}{mark}{place}", user if at else None
