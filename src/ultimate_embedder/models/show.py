"""The metadata of one model, as a table."""

from __future__ import annotations

import dataclasses

from ultimate_embedder.config import HubAccess
from ultimate_embedder.models.metadata import read_metadata
from ultimate_embedder.models.registry import find_spec
from ultimate_embedder.models.resolve import locate_model, resolve_model
from ultimate_embedder.types import ModelSpec


def model_rows(name: str, access: HubAccess) -> dict[str, str]:
    """Metadata of a model, from the registry or its files; accepts the same names as `--models`, makes no request."""
    spec = find_spec(name)
    return _registered(spec, access) if spec else _from_files(name, access)


def _registered(spec: ModelSpec, access: HubAccess) -> dict[str, str]:
    found = locate_model(spec, access)
    return {
        "key": spec.key,
        "hub id": spec.hub_id,
        "kind": spec.kind,
        "dims": str(spec.dim or "-"),
        "Matryoshka dims": ", ".join(map(str, spec.matryoshka_dims)) or "none",
        "token limit": str(spec.max_tokens),
        "document prompt": repr(spec.document_prompt.text) if spec.document_prompt else "none",
        "query prompt": repr(spec.query_prompt.text) if spec.query_prompt else "none",
        "remote code": "needed" if spec.remote_code else "no",
        "revision": spec.revision or "not pinned",
        "aliases": ", ".join(spec.aliases) or "-",
        "location": found.label,
        "size": _megabytes(found.size_bytes),
        "note": spec.note,
    }


def _from_files(name: str, access: HubAccess) -> dict[str, str]:
    model = resolve_model(name, dataclasses.replace(access, offline=True, refresh=False), to_load=False)
    facts = read_metadata(model.path)
    return {
        "key": f"{model.name} (not in the registry)",
        **({"hub id": model.spec.hub_id} if model.spec else {}),
        "path": str(model.path),
        "dims": str(facts.dim or "-"),
        "token limit": str(facts.max_tokens or "-"),
        "document prompt": repr(facts.document_prompt) if facts.document_prompt else "none",
        "query prompt": repr(facts.query_prompt) if facts.query_prompt else "none",
        "revision": model.revision,
        "size": _megabytes(model.size_bytes),
        "files digest": model.digest,
    }


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB" if size_bytes else "-"
