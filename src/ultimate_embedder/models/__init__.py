"""Registry, resolution, loading and encoding of models."""

from ultimate_embedder.models.ask_hub import ask_hub
from ultimate_embedder.models.attention import attention_in_pieces, uses_attention
from ultimate_embedder.models.backend import has_backend, int8_backend, load_on_backend, require_backend
from ultimate_embedder.models.bf16 import products_in_bf16
from ultimate_embedder.models.bm25 import BM25, WordCounter, resolve_bm25
from ultimate_embedder.models.canary import row_cosines
from ultimate_embedder.models.check import ModelCheck, check_model
from ultimate_embedder.models.described import DescribedModel, describe_model
from ultimate_embedder.models.encoder import Encoder, load_encoder, model_options
from ultimate_embedder.models.fused.native import has_native_int8, native
from ultimate_embedder.models.int8 import WEIGHTS_ONLY, in_words, possible_ways, usual_way
from ultimate_embedder.models.known_configs import KNOWN_CONFIGS
from ultimate_embedder.models.layers import (
    NotApplicableError,
    chunked_feed_forward,
    repeated_layers,
    where_applicable,
)
from ultimate_embedder.models.loaded import (
    LoadedModel,
    SegmentRows,
    TokenBatch,
    TokenizedTexts,
    aligned_length,
    padded_length,
)
from ultimate_embedder.models.manifest import output_manifest
from ultimate_embedder.models.metadata import check_dim, check_max_tokens, native_dim, position_limit
from ultimate_embedder.models.native_int8 import NO_KERNELS as NO_INT8_KERNELS
from ultimate_embedder.models.native_int8 import load_native_int8, suits_native_int8
from ultimate_embedder.models.registry import MODELS, find_spec
from ultimate_embedder.models.reranker import Reranker, load_reranker, resolve_reranker
from ultimate_embedder.models.resolve import locate_model, model_name, pull_model, resolve_model
from ultimate_embedder.models.runtimes import GraphRuntime
from ultimate_embedder.models.segments import SegmentCutter
from ultimate_embedder.models.shipped import PIECE_BYTES, ModelFiles, Receiver, find_shipped
from ultimate_embedder.models.show import model_rows
from ultimate_embedder.models.sparse_encoder import SparseModel, is_sparse_model, load_sparse_model, require_sparse
from ultimate_embedder.models.streaming import LayerStream
from ultimate_embedder.models.trust import is_trusted, require_trust
from ultimate_embedder.models.verify import ModelFile, list_files
from ultimate_embedder.models.vocabulary_head import small_pieces
from ultimate_embedder.models.without_weights import load_without_weights

__all__ = [
    "BM25",
    "KNOWN_CONFIGS",
    "MODELS",
    "NO_INT8_KERNELS",
    "PIECE_BYTES",
    "WEIGHTS_ONLY",
    "DescribedModel",
    "Encoder",
    "GraphRuntime",
    "LayerStream",
    "LoadedModel",
    "ModelCheck",
    "ModelFile",
    "ModelFiles",
    "NotApplicableError",
    "Receiver",
    "Reranker",
    "SegmentCutter",
    "SegmentRows",
    "SparseModel",
    "TokenBatch",
    "TokenizedTexts",
    "WordCounter",
    "aligned_length",
    "ask_hub",
    "attention_in_pieces",
    "check_dim",
    "check_max_tokens",
    "check_model",
    "chunked_feed_forward",
    "describe_model",
    "find_shipped",
    "find_spec",
    "has_backend",
    "has_native_int8",
    "in_words",
    "int8_backend",
    "is_sparse_model",
    "is_trusted",
    "list_files",
    "load_encoder",
    "load_native_int8",
    "load_on_backend",
    "load_reranker",
    "load_sparse_model",
    "load_without_weights",
    "locate_model",
    "model_name",
    "model_options",
    "model_rows",
    "native",
    "native_dim",
    "output_manifest",
    "padded_length",
    "position_limit",
    "possible_ways",
    "products_in_bf16",
    "pull_model",
    "repeated_layers",
    "require_backend",
    "require_sparse",
    "require_trust",
    "resolve_bm25",
    "resolve_model",
    "resolve_reranker",
    "row_cosines",
    "small_pieces",
    "suits_native_int8",
    "uses_attention",
    "usual_way",
    "where_applicable",
]
