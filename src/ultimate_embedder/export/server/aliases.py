"""Aliases: a second name of a collection, which can be pointed elsewhere in one step."""

from __future__ import annotations

import hashlib
from typing import Any

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.points import LONGEST_NAME
from ultimate_embedder.export.server.calls import Server
from ultimate_embedder.export.server.layout import Layout

DIGEST_CHARACTERS = 8


def new_target(base: str, checksum: str, layout: Layout, payload: str) -> str:
    """The collection that an alias will point to: another one for other points or other options.

    The same ones lead to the same name, so that an interrupted upload is resumed, from wherever it is run.
    """
    digest = hashlib.sha256(f"{checksum} {layout} {payload}".encode()).hexdigest()[:DIGEST_CHARACTERS]
    return f"{base[: LONGEST_NAME - DIGEST_CHARACTERS - 2]}__{digest}"


def read_aliases(server: Server) -> dict[str, str]:
    """The collection of each alias."""

    def read(found: Any) -> dict[str, str]:
        pairs = [(each["alias_name"], each["collection_name"]) for each in found["aliases"]]
        if not all(isinstance(name, str) for pair in pairs for name in pair):
            raise TypeError
        return dict(pairs)

    return server.ask("read the aliases", "GET", "/aliases", read=read)


def check_alias(server: Server, alias: str) -> str | None:
    """The collection that the alias points to now, or None; refuses the name of a collection."""
    current = read_aliases(server).get(alias)
    if current is None and server.exists(alias):
        raise UploadError(
            f"{server.url} has a collection called {alias}, so that an alias cannot have this name. Choose another "
            "with --alias, or delete that collection."
        )
    return current


def switch_alias(server: Server, alias: str, target: str) -> None:
    """Let the alias point to `target`, in one step, and see that it does."""
    actions: list[dict[str, Any]] = [{"create_alias": {"alias_name": alias, "collection_name": target}}]
    if alias in read_aliases(server):
        actions.insert(0, {"delete_alias": {"alias_name": alias}})
    server.ask("switch the alias", "POST", "/collections/aliases", body={"actions": actions})
    if (found := read_aliases(server).get(alias)) != target:
        raise UploadError(
            f"alias {alias} on {server.url} points to {found or 'nothing'} after it was pointed to {target}. Another "
            "program may be changing it. Run the same command again."
        )
