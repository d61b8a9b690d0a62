"""A hub that lies, and what it must not touch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.support.hub_server import HubServer
from ultimate_embedder.config import HubAccess
from ultimate_embedder.events import Event
from ultimate_embedder.models.download import Downloaded, download
from ultimate_embedder.retry import RetryPolicy
from ultimate_embedder.types import ModelSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SPEC = ModelSpec(key="model", hub_id="some/model", dim=0, max_tokens=0)
API = "GET /api/models"
CONTENT = b'{"max_position_embeddings": 8}'


def entry(name: Any = "config.json", content: bytes = CONTENT, **changed: Any) -> dict[str, Any]:
    """A file as an honest hub describes it, but for what is `changed`."""
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    return {"rfilename": name, "size": len(content), "blobId": git, **changed}


def info(*siblings: Any, **changed: Any) -> dict[str, Any]:
    """A model as an honest hub describes it, but for what is `changed`."""
    return {"id": SPEC.hub_id, "sha": COMMIT, "siblings": list(siblings or [entry()]), **changed}


def tell(hub: HubServer, described: Any, file: bytes = CONTENT, headers: dict[str, str] | None = None) -> None:
    """Let the hub describe the model like this, and send these bytes for every file."""
    body = described if isinstance(described, bytes) else json.dumps(described).encode()
    hub.replies = [(API, (200, body, {})), ("GET .*/resolve/", (200, file, headers or {}))]


def pull(cache: Path) -> Downloaded:
    """Download the model, with two tries and no waits."""
    ignored: list[Event] = []
    access = HubAccess(cache_dir=cache, retry=RetryPolicy(tries=2, first_wait_s=0.0))
    return download(SPEC, access, ignored.append)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder, without following links."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
