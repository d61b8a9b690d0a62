"""Everything about one model, as rows for people."""

from __future__ import annotations

import dataclasses

from ultimate_embedder.config import HubAccess
from ultimate_embedder.models.described import read_facts
from ultimate_embedder.models.registry import find_spec
from ultimate_embedder.models.resolve import resolve_model, whereabouts
from ultimate_embedder.types import ModelSpec


def model_rows(name: str, access: HubAccess) -> dict[str, str]:
    """What the registry knows of a model, else what its files say; takes what `--models` takes, asks no hub."""
    spec = find_spec(name)
    return _registered(spec, access) if spec else _from_files(name, access)


def _registered(spec: ModelSpec, access: HubAccess) -> dict[str, str]:
    found = whereabouts(spec, access)
    return {
        "key": spec.key,
        "hub id": spec.hub_id,
        "kind": spec.kind,
        "dims": str(spec.dim or "-"),
        "can be cut to": ", ".join(map(str, spec.matryoshka_dims)) or "none",
        "token limit": str(spec.max_tokens),
        "document prompt": repr(spec.document_prompt.text) if spec.document_prompt else "none",
        "query prompt": repr(spec.query_prompt.text) if spec.query_prompt else "none",
        "remote code": "needed" if spec.remote_code else "no",
        "revision": spec.revision or "not pinned",
        "also called": ", ".join(spec.aliases) or "-",
        "here": found.words,
        "size": _megabytes(found.size_bytes),
        "note": spec.note,
    }


def _from_files(name: str, access: HubAccess) -> dict[str, str]:
    model = resolve_model(name, dataclasses.replace(access, offline=True, refresh=False))
    facts = read_facts(model.path)
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
