"""Some points are read back after an upload: an acknowledgement is no proof that they are stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.points_file import Batch
from ultimate_embedder.export.server.calls import Server
from ultimate_embedder.export.server.failures import NotStoredError

READ_BACK_POINTS = 16  # spread over the file


class ReadBack:
    """A sample of the points that were sent."""

    def __init__(self, points: int) -> None:
        """`points`: how many there are in all."""
        self._points = points
        self._sent: dict[str, str] = {}

    def note(self, position: int, batch: Batch) -> None:
        """Remember a point of a batch that ends at this position of the file, if it is time for one."""
        if position >= len(self._sent) * self._points / READ_BACK_POINTS:
            ids, _, payloads = batch
            self._sent[ids[0]] = _digest(payloads[0])

    def require_stored(self, server: Server, target: str) -> None:
        """Compare what the server has with what was sent; tries again, as one replica of several may be late."""
        for point, digest in self._sent.items():
            try:
                _read(server, target, point, digest)
            except NotStoredError as error:
                raise UploadError(
                    f"{target} on {server.url} does not have point {point} as it was sent, though it was acknowledged. "
                    "Another program may be changing it. Run the same command again to send all points again."
                ) from error


def _read(server: Server, target: str, point: str, digest: str) -> None:
    def read(found: Any) -> None:
        if not found or _digest(found[0].get("payload") or {}) != digest:
            raise NotStoredError("a point is not what was sent, or not yet")

    body = {"ids": [point], "with_payload": True, "with_vector": False}
    server.ask("read a point back", "POST", "/points", target, body, read=read)


def _digest(payload: Mapping[str, Any]) -> str:
    """A checksum of the texts in a payload; numbers may come back from a server in another form."""
    texts = {name: value for name, value in payload.items() if isinstance(value, str)}
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()
