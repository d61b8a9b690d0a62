"""Vectors on disk."""

from ultimate_embedder.vectors.store import VectorStore, fingerprint

__all__ = ["VectorStore", "fingerprint"]
