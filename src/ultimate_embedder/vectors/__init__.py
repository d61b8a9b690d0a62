"""Vectors on disk, and the fusion of several models' vectors."""

from typing import TYPE_CHECKING

from ultimate_embedder.late import late_names
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
    from ultimate_embedder.description import EncoderFacts, fingerprint
    from ultimate_embedder.vectors.agreement import Agreement, read_agreement, write_agreement
    from ultimate_embedder.vectors.bm25 import weigh_counts
    from ultimate_embedder.vectors.choice import Choice, read_choice, write_choice
    from ultimate_embedder.vectors.fused import FusedVectors, holds_all
    from ultimate_embedder.vectors.index import KeyIndex
    from ultimate_embedder.vectors.ledger import Ledger, read_ledger
    from ultimate_embedder.vectors.memory import MemoryStore, PassVectors
    from ultimate_embedder.vectors.overflow import (
        in_full_precision,
        note_overflow,
        overflow_note,
        overflowed,
        read_overflow,
        settled_identity,
    )
    from ultimate_embedder.vectors.pooling import pool_largest, pool_segments, pool_texts
    from ultimate_embedder.vectors.row_kinds import ShardRows, row_dtype, row_kind
    from ultimate_embedder.vectors.sparse_part import SparsePart, measure_sparse
    from ultimate_embedder.vectors.store import VectorStore, earlier_identities, pass_problems, read_identity
    from ultimate_embedder.vectors.tokens import TokenLimits, TokenStore, delete_tokens, token_problems

__all__ = [
    "FUSIONS",
    "UNNAMED",
    "Agreement",
    "Candidate",
    "Choice",
    "EncoderFacts",
    "FusedVectors",
    "Fusion",
    "KeyIndex",
    "Ledger",
    "Member",
    "MemoryStore",
    "PassVectors",
    "ShardRows",
    "SparsePart",
    "TokenLimits",
    "TokenStore",
    "VectorStore",
    "Vectors",
    "delete_tokens",
    "earlier_identities",
    "fingerprint",
    "holds_all",
    "in_full_precision",
    "measure_sparse",
    "note_overflow",
    "overflow_note",
    "overflowed",
    "pass_problems",
    "plan_fusion",
    "pool_largest",
    "pool_segments",
    "pool_texts",
    "read_agreement",
    "read_choice",
    "read_identity",
    "read_ledger",
    "read_overflow",
    "row_dtype",
    "row_kind",
    "settled_identity",
    "shorten",
    "token_problems",
    "weigh_counts",
    "write_agreement",
    "write_choice",
]

# imported on first use: --help needs the names of the fusion methods, but not numpy and pyarrow
_MODULES = {
    "Agreement": "agreement",
    "Choice": "choice",
    "EncoderFacts": "store",
    "FusedVectors": "fused",
    "KeyIndex": "index",
    "Ledger": "ledger",
    "MemoryStore": "memory",
    "PassVectors": "memory",
    "ShardRows": "row_kinds",
    "SparsePart": "sparse_part",
    "TokenLimits": "tokens",
    "TokenStore": "tokens",
    "VectorStore": "store",
    "delete_tokens": "tokens",
    "earlier_identities": "store",
    "fingerprint": "store",
    "holds_all": "fused",
    "in_full_precision": "overflow",
    "measure_sparse": "sparse_part",
    "note_overflow": "overflow",
    "overflow_note": "overflow",
    "overflowed": "overflow",
    "pass_problems": "store",
    "pool_largest": "pooling",
    "pool_segments": "pooling",
    "pool_texts": "pooling",
    "read_agreement": "agreement",
    "read_choice": "choice",
    "read_identity": "store",
    "read_ledger": "ledger",
    "read_overflow": "overflow",
    "row_dtype": "row_kinds",
    "row_kind": "row_kinds",
    "settled_identity": "overflow",
    "token_problems": "tokens",
    "weigh_counts": "bm25",
    "write_agreement": "agreement",
    "write_choice": "choice",
}

__getattr__ = late_names(__name__, _MODULES)
