"""Vectors on disk."""

from ultimate_embedder.vectors.store import VectorStore, earlier_identities, fingerprint, read_ledger, shard_problem

__all__ = ["VectorStore", "earlier_identities", "fingerprint", "read_ledger", "shard_problem"]
