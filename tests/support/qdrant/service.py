"""Requests of the REST protocol: which collections there are, and what is asked of them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import orjson
from qdrant_client.http import models

from tests.support.qdrant.errors import RefusedError
from tests.support.qdrant.points import POINT_REQUESTS, delete_index
from tests.support.qdrant.stored import Json, StoredCollection

BEFORE_METADATA = "1.15.5"
HEALTH = ("healthz", "livez", "readyz")


class Service:
    """The collections of a server, by name or by alias."""

    def __init__(self, *, has_metadata: bool) -> None:
        self.collections: dict[str, StoredCollection] = {}
        self.aliases: dict[str, str] = {}
        """Names of collections by alias."""
        self._has_metadata = has_metadata

    def carry_out(self, method: str, parts: Sequence[str], body: bytes) -> Any:
        """The result of a request; `parts` are those of its path."""
        match method, *parts:
            case "GET", "":
                version = importlib.metadata.version("qdrant-client") if self._has_metadata else BEFORE_METADATA
                return {"title": "qdrant - vector search engine", "version": version}
            case "GET", word if word in HEALTH:
                return f"{word} check passed"
            case "GET", "collections":
                return {"collections": [{"name": name} for name in self.collections]}
            case "GET", "aliases":
                return {"aliases": self._aliases()}
            case "POST", "collections", "aliases":
                return self._change_aliases(_parse(models.ChangeAliasesOperation, body))
            case _, "collections", name, *rest:
                return self._of_collection(method, name, rest, body)
        raise RefusedError(404, f"{method} /{'/'.join(parts)} is not spoken here")

    def _of_collection(self, method: str, name: str, rest: list[str], body: bytes) -> Any:
        found = self.collections.get(self.aliases.get(name, name))
        match method, rest, found:
            case "GET", ["exists"], _:
                return {"exists": found is not None}
            case "PUT", [], None:
                self.collections[name] = self._create(_parse(models.CreateCollection, body))
                return True
            case "PUT", [], _:
                raise RefusedError(409, f"Wrong input: Collection `{name}` already exists!")
            case "DELETE", [], _:
                return self._delete(name)
            case _, _, None:
                raise RefusedError(404, f"Not found: Collection `{name}` doesn't exist!")
            case "GET", [], _:
                return found.describe()
            case "PATCH", [], _:
                return self._update(found, _parse(models.UpdateCollection, body))
            case "GET", ["aliases"], _:
                return {"aliases": [each for each in self._aliases() if each["collection_name"] == name]}
            case "GET", ["points", point], _:
                wanted = {"ids": [int(point) if point.isdigit() else point], "with_vector": True}
                return (POINT_REQUESTS["POST", "points"](found, wanted) or [None])[0]
            case "DELETE", ["index", field], _:
                return delete_index(found, field)
        asked = (method, *rest)
        if found is None or asked not in POINT_REQUESTS:
            raise RefusedError(404, f"{method} {'/'.join(rest)} is not spoken here")
        wanted = orjson.loads(body or b"{}")
        if not isinstance(wanted, dict):
            raise RefusedError(400, "Format error in JSON body: not an object")
        return POINT_REQUESTS[asked](found, wanted)

    def _create(self, wanted: Json) -> StoredCollection:
        asked = models.CreateCollection.model_validate(wanted)
        rest = {name: wanted[name] for name in wanted if name not in ("vectors", "sparse_vectors", "metadata")}
        metadata = wanted.get("metadata") if self._has_metadata else None
        return StoredCollection(
            asked.vectors or {}, metadata=metadata, sparse_vectors=asked.sparse_vectors, settings=rest
        )

    def _update(self, found: StoredCollection, wanted: Json) -> bool:
        metadata = wanted.pop("metadata", None)
        if self._has_metadata and metadata is not None:
            found.metadata = {**(found.metadata or {}), **metadata}
        found.settings |= wanted.pop("params", None) or {}
        for name, changes in wanted.items():
            known = found.settings.get(name)
            found.settings[name] = {**known, **changes} if isinstance(known, dict) else changes
        return True

    def _delete(self, name: str) -> bool:
        self.aliases = {alias: each for alias, each in self.aliases.items() if each != name}
        return self.collections.pop(name, None) is not None

    def _aliases(self) -> list[Json]:
        return [{"alias_name": alias, "collection_name": name} for alias, name in self.aliases.items()]

    def _change_aliases(self, wanted: Json) -> bool:
        changed = dict(self.aliases)
        for action in wanted["actions"]:
            match action:
                case {"create_alias": {"collection_name": name, "alias_name": alias}}:
                    if name not in self.collections:
                        raise RefusedError(404, f"Not found: Collection `{name}` doesn't exist!")
                    if alias in self.collections:
                        raise RefusedError(409, f"Wrong input: Collection `{alias}` already exists!")
                    changed[alias] = name
                case {"delete_alias": {"alias_name": alias}}:
                    if changed.pop(alias, None) is None:
                        raise RefusedError(404, f"Not found: Alias {alias} does not exists!")
                case {"rename_alias": {"old_alias_name": old, "new_alias_name": new}}:
                    if old not in changed:
                        raise RefusedError(404, f"Not found: Alias {old} does not exists!")
                    changed[new] = changed.pop(old)
        self.aliases = changed  # all of them, or none
        return True


def _parse(kind: Any, body: bytes) -> Json:
    """A request that qdrant-client knows, without what is not set; `ValueError` if it is none."""
    wanted = orjson.loads(body)
    kind.model_validate({name: value for name, value in wanted.items() if name != "metadata"})  # new in 1.16
    return {name: value for name, value in wanted.items() if value is not None}
