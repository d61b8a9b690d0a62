"""Where vectors are from: the models, numbers and fusion that made them. Only equal ones may be searched together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ultimate_embedder.export.sparse_facts import sparse_record

if TYPE_CHECKING:
    from ultimate_embedder.vectors import FusedVectors

MOST_DIFFERENCES = 5


@dataclass(frozen=True)
class VectorOrigin:
    """The passes and the fusion that made the vectors of a collection."""

    fingerprint: str
    """Equal fingerprints mean comparable vectors."""
    passes: tuple[Mapping[str, Any], ...]
    """The identity of each pass."""
    fusion: Mapping[str, Any] | None
    """Method and weights, if there are several passes."""
    vectors: tuple[Mapping[str, Any], ...]
    """Name and dimension of each vector, and its kind if that is sparse."""
    sparse: tuple[Mapping[str, Any], ...] = ()
    """What is known of the sparse vectors: not part of the fingerprint, as the mean length of chunks changes."""

    def as_record(self) -> dict[str, Any]:
        """As it is stored: in the export, its journal, and on the server."""
        record: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        if not self.sparse:
            del record["sparse"]
        return record

    def as_mark(self) -> dict[str, Any]:
        """The same in short, for the payload of every point where there is no other place."""
        names = ("model", "model_digest", "dtype", "document_prompt")
        passes = [{name: each.get(name) for name in names} for each in self.passes]
        return {"fingerprint": self.fingerprint, "passes": passes}

    def __str__(self) -> str:
        models = [f"{each.get('model')} ({str(each.get('model_digest'))[:12]})" for each in self.passes]
        return " and ".join(models) or self.fingerprint


def origin_of(vectors: FusedVectors) -> VectorOrigin:
    """The origin of the exported vectors of a collection."""
    passes = tuple(identity.as_dict() for identity in vectors.identities)
    fusion = asdict(vectors.fusion) if vectors.is_fused else None
    specs = tuple(
        {"name": spec.name, "dim": spec.dim, **({"kind": spec.kind} if spec.is_sparse else {})}
        for spec in vectors.vectors
    )
    described = json.dumps([vectors.fingerprints, fusion, specs], sort_keys=True)
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    return VectorOrigin(digest, passes, fusion, specs, tuple(sparse_record(vectors.sparse)))


def read_origin(record: Any) -> VectorOrigin | None:
    """An origin that was stored; None if it is not one, whatever it is."""
    if not isinstance(record, Mapping) or not isinstance(record.get("fingerprint"), str):
        return None
    fusion = record.get("fusion")
    return VectorOrigin(
        record["fingerprint"],
        _objects(record.get("passes")),
        fusion if isinstance(fusion, Mapping) else None,
        _objects(record.get("vectors")),
        _objects(record.get("sparse")),
    )


def difference(there: VectorOrigin, ours: VectorOrigin) -> str:
    """How the origin of other vectors differs from that of ours, in words."""
    old, new = dict(_facts(there)), dict(_facts(ours))
    changed = [
        f"{name} there is {_short(old[name])}, ours is {_short(new[name])}"
        for name in new
        if name in old and old[name] != new[name]
    ]
    return "; ".join(changed[:MOST_DIFFERENCES]) or f"{there.fingerprint} there, {ours.fingerprint} here"


def _facts(origin: VectorOrigin) -> Iterator[tuple[str, Any]]:
    for number, each in enumerate(origin.passes):
        which = f" of model {number + 1}" if len(origin.passes) > 1 else ""
        known = {"overlong": "truncate", **each}  # it is left out where texts are truncated
        yield from ((f"{name.replace('_', ' ')}{which}", value) for name, value in known.items())
    yield from ((f"fusion {name}", value) for name, value in (origin.fusion or {}).items())
    yield "number of models", len(origin.passes)
    if origin.vectors:
        yield "dimensions", [each.get("dim") for each in origin.vectors]


def _short(value: Any) -> str:
    shown = value[:16] if isinstance(value, str) else value
    return repr(shown)[:200]


def _objects(value: Any) -> tuple[Mapping[str, Any], ...]:
    items = value if isinstance(value, list) else []
    return tuple({str(name): each for name, each in item.items()} for item in items if isinstance(item, Mapping))
