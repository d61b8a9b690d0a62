"""A reranker scores texts against a query. It is found cache first, and run like any model: leased, in batches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import Emit
from ultimate_embedder.models.imports import import_quickly
from ultimate_embedder.models.loaded import LoadedModel, TokenBatch, TokenizedTexts
from ultimate_embedder.models.quiet import quiet_loading
from ultimate_embedder.models.resolve import resolve_model
from ultimate_embedder.types import ResolvedModel

if TYPE_CHECKING:
    import torch

GUESSED_LIMIT = 512  # tokens of a pair, where the model names no limit
WITHOUT_SCORES = ("Model", "ForMaskedLM")  # ends of the names of architectures that are no rerankers


class Reranker(LoadedModel):
    """A cross-encoder: each text is read together with the query, and gets a score by itself."""

    output = "scores"

    def pairs(self, query: str, texts: Sequence[str]) -> TokenizedTexts:
        """Query and text of each candidate, with the length that the model will see."""
        limit = min(self.model.max_seq_length or GUESSED_LIMIT, 1 << 20)
        encoded = self.model.tokenizer(
            [query] * len(texts), list(texts), truncation=True, max_length=limit, verbose=False
        )
        lengths = np.array([len(ids) for ids in encoded["input_ids"]])
        return TokenizedTexts([(query, text) for text in texts], lengths, np.zeros(len(texts), bool))

    def batch(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> TokenBatch:
        """The pairs themselves: the model tokenises them."""
        tokens = int(texts.lengths[rows].sum())
        padded = int(texts.lengths[rows].max()) * len(rows)
        return TokenBatch({"pairs": [texts.rows[row] for row in rows]}, tokens, padded)

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """One score a pair."""
        import torch

        pairs: list[Any] = batch.features["pairs"]
        scores = self.model.predict(pairs, batch_size=len(pairs), show_progress_bar=False, convert_to_tensor=True)
        return torch.as_tensor(scores).float().reshape(len(pairs), -1)


class ListReranker(Reranker):
    """A model with its own `rerank`, which reads all texts of a batch together with the query (jina-reranker-v3)."""

    def pairs(self, query: str, texts: Sequence[str]) -> TokenizedTexts:
        """As the other, with lengths guessed from characters: only the model's own code can tokenise."""
        lengths = np.array([(len(query) + len(text)) // 3 + 2 for text in texts])
        return TokenizedTexts([(query, text) for text in texts], lengths, np.zeros(len(texts), bool))

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """One score a text."""
        import torch

        pairs: list[tuple[str, str]] = batch.features["pairs"]
        with torch.inference_mode():
            ranked = self.model.rerank(pairs[0][0], [text for _, text in pairs])
        scores = torch.zeros(len(pairs), 1)
        for entry in ranked:
            scores[entry["index"], 0] = float(entry["relevance_score"])
        return scores


def resolve_reranker(name: str, access: HubAccess, emit: Emit) -> ResolvedModel:
    """Find a reranker as any model is found; one that needs its own code must be trusted by name."""
    return resolve_model(name, access, emit, kind="reranker")


def load_reranker(model: ResolvedModel, dtype: str, trusted: Sequence[str] = ()) -> Reranker:
    """Load a reranker onto the host, from its resolved path: no network, and its own code only where it is trusted."""
    import_quickly("sentence_transformers")
    import torch
    from sentence_transformers import CrossEncoder

    _require_scores(model)
    own_code = model.spec is not None and model.spec.remote_code and model.spec.key in trusted
    options = {"dtype": getattr(torch, dtype)}
    try:
        with quiet_loading():
            if own_code:
                return _load_own_code(model, options)
            loaded = CrossEncoder(
                str(model.path), device="cpu", local_files_only=True, trust_remote_code=False, model_kwargs=options
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(f"{model.name} cannot be loaded from {model.path}: {error}") from error
    loaded.eval()
    return Reranker(model.name, loaded)


def _require_scores(model: ResolvedModel) -> None:
    """Refuse a model without a head for scores: it would be given a random one."""
    described = [(model.path / name) for name in ("config.json", "modules.json")]
    config, modules = (json.loads(path.read_text("utf-8")) if path.is_file() else {} for path in described)
    pooled = any(module["type"].endswith(".Pooling") for module in modules)
    architectures = [] if "auto_map" in config else config.get("architectures") or []
    if pooled or any(name.endswith(WITHOUT_SCORES) for name in architectures):
        raise ModelError(f"{model.name} makes vectors and scores no pairs ({model.path}). Choose a reranker.")


def _load_own_code(model: ResolvedModel, options: dict[str, Any]) -> Reranker:
    import transformers

    untyped: Any = transformers.AutoModel
    loaded = untyped.from_pretrained(str(model.path), trust_remote_code=True, local_files_only=True, **options).eval()
    if not hasattr(loaded, "rerank"):
        raise ModelError(f"{model.name} has no 'rerank' in its own code ({model.path}).")
    return ListReranker(model.name, loaded)
