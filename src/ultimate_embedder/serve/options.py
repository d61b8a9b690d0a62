"""The options of `serve`: name, type, default, help and check of each, in the signature of `make_serve_config`.

Annotations are evaluated here (no `from __future__ import annotations`), as they are read at run time.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ultimate_embedder.config import (
    CacheDirOption,
    OfflineOption,
    Option,
    TrustOption,
    parse_names,
    read_options,
    serve_token_from_environment,
)
from ultimate_embedder.devices import DEVICE_WORDS
from ultimate_embedder.errors import UsageError
from ultimate_embedder.find import SearchPlace, make_search_config
from ultimate_embedder.serve.address import Address, find_address

PLACE = "where it listens"
SEARCH = "search and queries"

HOST = "127.0.0.1"
PORT = 8765
SHORTEST_TOKEN = 16
TOKEN_BYTES = 24  # of a token that is generated


@dataclass(frozen=True)
class ServeConfig:
    """All options of `serve`. The defaults are those of `make_serve_config`."""

    folder: Path
    address: Address
    token: str | None = field(repr=False)
    allowed_hosts: tuple[str, ...]
    open: bool
    place: SearchPlace
    """What is searched, and where models are looked for."""
    reranker: str | None


def _folder(value: str | Path, option: str) -> Path:
    if not Path(value).is_dir():
        raise UsageError(f"{value} is not a folder. Give the --output of an embed that runs, or of an earlier one.")
    return Path(value)


def _port(value: int, option: str) -> int:
    if not 0 <= value <= 65535:
        raise UsageError(f"{option} {value}: a port is a number from 1 to 65535; 0 means any free one.")
    return value


def _token(value: str, option: str) -> str:
    if len(value) < SHORTEST_TOKEN or not all("!" <= character <= "~" for character in value):
        raise UsageError(
            f"{option}: a token has at least {SHORTEST_TOKEN} characters, of ASCII and without spaces. "
            "Leave it out, and one is generated where it is needed."
        )
    return value


def make_serve_config(
    folder: Annotated[
        str | Path, Option("the --output of embed, also of one that runs", PLACE, "OUT", positional=True, read=_folder)
    ],
    *,
    host: Annotated[
        str, Option("address to listen at; one that others can reach needs a token", PLACE, "ADDRESS")
    ] = HOST,
    port: Annotated[int, Option("port; 0 for any free one", PLACE, "N", default=str(PORT), read=_port)] = PORT,
    token: Annotated[
        str | None,
        Option(
            "what clients must send: 'Authorization: Bearer TOKEN', or once /?token=TOKEN in a browser",
            PLACE,
            "TOKEN",
            default="ULTIMATE_EMBEDDER_TOKEN; else one is generated, unless the address is this machine's own",
            read=_token,
        ),
    ] = None,
    allow_host: Annotated[
        str | Iterable[str],
        Option(
            "a further name that the server may be addressed by, such as that of a proxy. May be repeated",
            PLACE,
            "NAME",
            read=parse_names,
            repeatable=True,
        ),
    ] = (),
    open: Annotated[bool, Option("open the page in a browser", PLACE)] = False,
    rerank: Annotated[
        str | None,
        Option("a reranker that searches may ask for, such as bge-reranker-v2-m3", SEARCH, "MODEL"),
    ] = None,
    devices: Annotated[
        str | Iterable[str] | None,
        Option(
            f"devices of the reranker: {' | '.join(DEVICE_WORDS)}; questions are encoded on the CPU",
            SEARCH,
            "DEVICES",
            default="auto",
        ),
    ] = None,
    model: Annotated[
        str | Iterable[str],
        Option(
            "folder of a model that is not where embed found it; may be repeated",
            SEARCH,
            "DIR",
            repeatable=True,
        ),
    ] = (),
    cache_dir: CacheDirOption = None,
    offline: OfflineOption = False,
    trust_remote_code: TrustOption = (),
) -> ServeConfig:
    """Turn the user's options into a valid `ServeConfig`, or raise a `UsageError` that says what is wrong."""
    values = read_options(make_serve_config, locals())
    searched = make_search_config(
        values["folder"],
        "any",  # each request has its own
        rerank=rerank,
        devices=devices,
        model=model,
        cache_dir=cache_dir,
        offline=offline,
        trust_remote_code=trust_remote_code,
    )
    address = find_address(values["host"], values["port"])
    given = values["token"] or serve_token_from_environment()
    if given is not None:
        _token(given, "--token" if values["token"] else "ULTIMATE_EMBEDDER_TOKEN")
    generated = None if address.is_loopback else secrets.token_urlsafe(TOKEN_BYTES)
    return ServeConfig(
        folder=values["folder"],
        address=address,
        token=given or generated,
        allowed_hosts=tuple(name.lower() for name in values["allow_host"]),
        open=values["open"],
        place=searched.place,
        reranker=rerank,
    )
