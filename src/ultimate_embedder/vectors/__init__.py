"""Vectors on disk, and what several models' vectors become."""

from ultimate_embedder.vectors.fusion import (
    UNNAMED,
    Candidate,
    FusedVectors,
    Fusion,
    Member,
    Vectors,
    plan_fusion,
    shorten,
)
from ultimate_embedder.vectors.store import (
    EncoderFacts,
    VectorStore,
    earlier_identities,
    fingerprint,
    read_identity,
    read_ledger,
    shard_problem,
)
from ultimate_embedder.vectors.tokens import TokenStore

__all__ = [
    "UNNAMED",
    "Candidate",
    "EncoderFacts",
    "FusedVectors",
    "Fusion",
    "Member",
    "TokenStore",
    "VectorStore",
    "Vectors",
    "earlier_identities",
    "fingerprint",
    "plan_fusion",
    "read_identity",
    "read_ledger",
    "shard_problem",
    "shorten",
]
