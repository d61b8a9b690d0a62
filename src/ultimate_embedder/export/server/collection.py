"""The Qdrant collection that an upload fills: created as asked for, or checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.server.calls import Server
from ultimate_embedder.export.server.failures import shown
from ultimate_embedder.export.server.layout import SINCE_VERSION, Layout
from ultimate_embedder.types import UNNAMED, SparseFacts, VectorSpec

DISTANCE = "Cosine"
IDF = "idf"
WAY_OUT = "Give another name with --collection, or delete that collection with --recreate."


def require_support(server: Server, layout: Layout) -> None:
    """Refuse what the server is too old for, before anything is changed."""
    needed = SINCE_VERSION.get(layout.quantization or "")
    if needed is None:
        return
    version = server.version()
    digits = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    if digits and (int(digits[1]), int(digits[2])) < needed:
        raise UploadError(
            f"--quantization {layout.quantization} needs Qdrant {'.'.join(map(str, needed))} or later, and "
            f"{server.url} is {version}. Use scalar, product or binary."
        )


def create_collection(
    server: Server, target: str, ours: Sequence[VectorSpec], sparse: Sequence[SparseFacts], layout: Layout
) -> None:
    """Create a collection, and see that the server has understood the options."""
    on_disk = {"on_disk": True} if layout.on_disk else {}
    vectors = {spec.name: {"size": spec.dim, "distance": DISTANCE, **on_disk} for spec in ours if spec.dim is not None}
    beside = {each.name: _sparse_settings(each, on_disk) for each in sparse}
    body = {"vectors": vectors.get(UNNAMED, vectors), **({"sparse_vectors": beside} if beside else {})}
    server.create(target, {**body, **layout.settings()})
    if problem := layout.misfit(server.config(target)):
        raise UploadError(
            f"{server.url} has created {target}, but does not follow {problem}. The server may be too old for this "
            "option: drop it. The collection is empty."
        )


def check_collection(
    server: Server, target: str, ours: Sequence[VectorSpec], sparse: Sequence[SparseFacts], layout: Layout
) -> None:
    """Check that the vectors of an existing collection match ours, and that it follows the options."""
    config = server.config(target)
    dense = [spec for spec in ours if not spec.is_sparse]
    problem = _misfit(config["params"].get("vectors"), dense)
    if problem := problem or _sparse_misfit(config["params"].get("sparse_vectors"), sparse):
        raise UploadError(f"collection {target} on {server.url} has {problem}. {WAY_OUT}")
    if problem := layout.misfit(config):
        raise UploadError(
            f"collection {target} on {server.url} exists, and does not follow {problem}. Drop the option to leave it "
            "as it is, or replace the collection: --recreate, or --alias NAME."
        )


def create_indexes(server: Server, target: str, layout: Layout) -> None:
    """Create the payload indexes that are missing; before the points, so that the search graph is built for filters."""
    if not layout.indexes:
        return
    schema = server.info(target).get("payload_schema")
    there = schema if isinstance(schema, Mapping) else {}
    for index in layout.indexes:
        found = there.get(index.field)
        kind = found.get("data_type") if isinstance(found, Mapping) else None
        if kind is not None and kind != index.type:
            raise UploadError(
                f"{target} on {server.url} has an index on {index.field} for {shown(kind)}, and --payload-index asks "
                f"for {index.type}. Drop the option, or delete that index."
            )
        if kind is None:
            body = {"field_name": index.field, "field_schema": index.type}
            server.ask(f"index {index.field}", "PUT", "/index", target, body, wait="true")


def _misfit(vectors: Any, ours: Sequence[VectorSpec]) -> str | None:
    """How the vectors of a collection differ from ours, or None."""
    there = {UNNAMED: vectors} if isinstance(vectors, dict) and "size" in vectors else vectors or {}
    if not isinstance(there, dict) or not all(isinstance(each, dict) for each in there.values()):
        return "vectors that this program does not know"
    for spec in ours:
        if spec.name == UNNAMED and UNNAMED not in there:
            return f"named vectors, but ours are unnamed with {spec.dim} dimensions"
    if set(there) != {spec.name for spec in ours}:
        return f"{_names(there)}, but ours are named {', '.join(spec.name for spec in ours)}"
    for spec in ours:
        which, theirs = f" named {spec.name}" if spec.name else "", there[spec.name]
        if theirs.get("size") != spec.dim:
            return f"vectors{which} with {shown(theirs.get('size'))} dimensions, but ours have {spec.dim}"
        if theirs.get("distance") != DISTANCE:
            return f"vectors{which} with {shown(theirs.get('distance'))} distance, but ours need {DISTANCE}"
    return None


def _sparse_settings(facts: SparseFacts, on_disk: Mapping[str, Any]) -> dict[str, Any]:
    modifier = {"modifier": facts.modifier} if facts.modifier else {}
    return {**modifier, **({"index": dict(on_disk)} if on_disk else {})}


def _sparse_misfit(there: Any, ours: Sequence[SparseFacts]) -> str | None:
    """How the sparse vectors of a collection differ from ours, or None; those that only it has do no harm."""
    found = there if isinstance(there, Mapping) else {}
    for facts in ours:
        theirs = found.get(facts.name)
        if facts.name not in found:
            return f"no sparse vectors named {facts.name}, which ours have"
        modifier = theirs.get("modifier") if isinstance(theirs, Mapping) else None
        if (IDF if modifier == IDF else None) != facts.modifier:
            wanted = f"need the modifier {facts.modifier}" if facts.modifier else "need none"
            return f"sparse vectors named {facts.name} with the modifier {shown(modifier)}, but ours {wanted}"
    return None


def _names(vectors: Iterable[str]) -> str:
    names = [name for name in vectors if name]
    return f"vectors named {', '.join(names)}" if names else "unnamed vectors"
