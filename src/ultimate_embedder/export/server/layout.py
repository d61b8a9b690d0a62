"""How a new Qdrant collection is laid out: quantization, HNSW graph, shards, payload indexes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ultimate_embedder.config import one_of
from ultimate_embedder.errors import UsageError
from ultimate_embedder.types import HnswGraph

# quantized vectors stay in memory also where the originals are on disk: that is what they are for
QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "scalar": {"type": "int8", "quantile": 0.99, "always_ram": True},
    "product": {"compression": "x16", "always_ram": True},
    "binary": {"always_ram": True},
    "turbo": {"always_ram": True},
}
"""The settings of each method on the server."""
SINCE_VERSION = {"turbo": (1, 18)}
"""The first version of Qdrant that has a method, where an older one may be met."""
INDEX_TYPES = ("keyword", "integer", "float", "bool", "datetime", "uuid", "text", "geo")


@dataclass(frozen=True)
class PayloadIndex:
    """An index on a field of the payload."""

    field: str
    type: str


@dataclass(frozen=True)
class Layout:
    """What the user has asked for; None and empty mean the server's defaults."""

    quantization: str | None = None
    on_disk: bool = False
    hnsw: HnswGraph | None = None
    shards: int | None = None
    indexes: tuple[PayloadIndex, ...] = ()

    def settings(self) -> dict[str, Any]:
        """The part of a request to create a collection."""
        body: dict[str, Any] = {}
        if self.quantization:
            body["quantization_config"] = {self.quantization: QUANTIZATIONS[self.quantization]}
        if self.hnsw:
            body["hnsw_config"] = asdict(self.hnsw)
        if self.shards:
            body["shard_number"] = self.shards
        if self.on_disk:
            body["on_disk_payload"] = True
        return body

    def misfit(self, config: Mapping[str, Any]) -> str | None:
        """The first option that an existing collection does not follow, with what it has; None if it follows all."""
        params, graph = config["params"], config.get("hnsw_config")
        found = config.get("quantization_config") or {}
        if self.quantization and self.quantization not in found:
            return f"--quantization {self.quantization}: it has {' and '.join(map(str, found)) or 'none'}"
        for name, value in (asdict(self.hnsw) if self.hnsw else {}).items():
            if isinstance(graph, Mapping) and graph.get(name) != value:
                return f"--hnsw {name}={value}: it has {str(graph.get(name))[:20]}"
        if self.shards and params.get("shard_number") != self.shards:
            return f"--shards {self.shards}: it has {str(params.get('shard_number'))[:20]}"
        if self.on_disk and not all(each.get("on_disk") for each in _vectors(params)):
            return "--on-disk: its vectors are in memory"
        return None


def _vectors(params: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    vectors = params.get("vectors")
    if not isinstance(vectors, Mapping):
        return []
    every = [vectors] if "size" in vectors else list(vectors.values())
    return [each for each in every if isinstance(each, Mapping)]


def parse_payload_indexes(value: str | Iterable[str], option: str) -> tuple[PayloadIndex, ...]:
    """Read `field:type`, of which there may be several."""
    indexes = []
    for word in [value] if isinstance(value, str) else value:
        field, colon, kind = word.rpartition(":")
        if not colon or not field.strip():
            raise UsageError(f"{option} {word}: write FIELD:TYPE, such as metadata.page:integer.")
        indexes.append(PayloadIndex(field.strip(), one_of(kind.strip(), INDEX_TYPES, option)))
    twice = [each.field for each in indexes if sum(other.field == each.field for other in indexes) > 1]
    if twice:
        raise UsageError(f"{option}: {twice[0]} is given twice. A field has one index.")
    return tuple(indexes)
