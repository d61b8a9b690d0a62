"""What Qdrant answers with another status than 200."""

from __future__ import annotations


class RefusedError(Exception):
    """A request that Qdrant refuses."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
