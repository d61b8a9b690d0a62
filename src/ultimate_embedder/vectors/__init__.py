"""Vectors on disk, and the fusion of several models' vectors."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.types import UNNAMED
from ultimate_embedder.vectors.fusion import (
    FUSIONS,
    Candidate,
    Fusion,
    Member,
    Vectors,
    plan_fusion,
    shorten,
)

if TYPE_CHECKING:
    from ultimate_embedder.vectors.fused import FusedVectors
    from ultimate_embedder.vectors.index import KeyIndex
    from ultimate_embedder.vectors.overflow import in_full_precision, note_overflow, overflowed, settled_identity
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
    "FUSIONS",
    "UNNAMED",
    "Candidate",
    "EncoderFacts",
    "FusedVectors",
    "Fusion",
    "KeyIndex",
    "Member",
    "TokenStore",
    "VectorStore",
    "Vectors",
    "earlier_identities",
    "fingerprint",
    "in_full_precision",
    "note_overflow",
    "overflowed",
    "plan_fusion",
    "read_identity",
    "read_ledger",
    "settled_identity",
    "shard_problem",
    "shorten",
]

# imported on first use: --help needs the names of the fusion methods, but not numpy and pyarrow
_MODULES = {
    "EncoderFacts": "store",
    "FusedVectors": "fused",
    "KeyIndex": "index",
    "TokenStore": "tokens",
    "VectorStore": "store",
    "earlier_identities": "store",
    "fingerprint": "store",
    "in_full_precision": "overflow",
    "note_overflow": "overflow",
    "overflowed": "overflow",
    "read_identity": "store",
    "read_ledger": "store",
    "settled_identity": "overflow",
    "shard_problem": "store",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"ultimate_embedder.vectors.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
