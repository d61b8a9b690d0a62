"""Rerankers: models that score texts against a query. Found, leased and run in batches like any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import Emit
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models.config_files import read_modules, read_object
from ultimate_embedder.models.encoder import model_options
from ultimate_embedder.models.imports import import_quickly
from ultimate_embedder.models.loaded import LoadedModel, TokenBatch, TokenizedTexts
from ultimate_embedder.models.quiet import quiet_loading
from ultimate_embedder.models.resolve import resolve_model
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.types import ResolvedModel

if TYPE_CHECKING:
    import torch

GUESSED_LIMIT = 512  # tokens of a pair, if the model has no limit
MOST_CHARACTERS_PER_TOKEN = 64  # what is beyond would be truncated in any case, and takes long to tokenise
WITHOUT_SCORES = ("Model", "ForMaskedLM")  # suffixes of architectures that are not rerankers


class Reranker(LoadedModel):
    """A cross-encoder: scores each pair of query and text independently."""

    output = "scores"
    works_apart = True
    """Whether several threads can use it at the same time."""

    def __init__(self, name: str, model: Any) -> None:
        super().__init__(name, model)
        self._tokenizing = OrderedLock(f"tokenizer of {name}", Rank.TOKENIZER)  # workers share it, and it has a state

    @property
    def limit(self) -> int:
        """Tokens of a pair, at the most; a longer text is truncated."""
        return min(self.model.max_seq_length or GUESSED_LIMIT, 1 << 20)

    def pairs(self, query: str, texts: Sequence[str]) -> TokenizedTexts:
        """Pairs of the query and each text, with their token lengths, and how many tokens are beyond the limit."""
        limit = self.limit
        shorter = [text[: limit * MOST_CHARACTERS_PER_TOKEN] for text in texts]
        with self._tokenizing:
            encoded = self.model.tokenizer([query] * len(texts), shorter, truncation=False, verbose=False)
        lengths = np.array([len(ids) for ids in encoded["input_ids"]], int)
        over = np.maximum(lengths - limit, 0)
        return TokenizedTexts([(query, text) for text in shorter], np.minimum(lengths, limit), over)

    def batch(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> TokenBatch:
        """The pairs as token ids, padded to the longest of them."""
        tokens = int(texts.lengths[rows].sum())
        padded = int(texts.lengths[rows].max()) * len(rows)
        prompts, name = getattr(self.model, "prompts", {}), getattr(self.model, "default_prompt_name", None)
        with self._tokenizing:
            features = self.model.preprocess([texts.rows[row] for row in rows], prompt=prompts.get(name))
        return TokenBatch(dict(features), tokens, padded)

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """One score per pair."""
        import torch

        place = self.device
        inputs = {
            name: value.to(place) if isinstance(value, torch.Tensor) else value
            for name, value in batch.features.items()
        }
        with torch.inference_mode():
            scores: torch.Tensor = self.model(inputs)[self.output].float()
            if self.model.activation_fn is not None:
                scores = self.model.activation_fn(scores)
        return scores.reshape(len(scores), -1)


class ListReranker(Reranker):
    """A listwise reranker with its own `rerank` method, which reads all texts of a batch at once (jina-reranker-v3)."""

    works_apart = False

    def pairs(self, query: str, texts: Sequence[str]) -> TokenizedTexts:
        """Pairs with lengths estimated from characters, as the model tokenises them."""
        lengths = np.array([(len(query) + len(text)) // 3 + 2 for text in texts])
        return TokenizedTexts([(query, text) for text in texts], lengths, np.zeros(len(texts), int))

    def batch(self, texts: TokenizedTexts, rows: np.ndarray, packed: bool = False) -> TokenBatch:
        """The pairs; the model tokenises them."""
        tokens = int(texts.lengths[rows].sum())
        padded = int(texts.lengths[rows].max()) * len(rows)
        return TokenBatch({"pairs": [texts.rows[row] for row in rows]}, tokens, padded)

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """One score per text."""
        import torch

        pairs: list[tuple[str, str]] = batch.features["pairs"]
        with torch.inference_mode():
            ranked = self.model.rerank(pairs[0][0], [text for _, text in pairs])
        scores = torch.zeros(len(pairs), 1)
        for entry in ranked:
            scores[entry["index"], 0] = float(entry["relevance_score"])
        return scores


def resolve_reranker(name: str, access: HubAccess, emit: Emit) -> ResolvedModel:
    """Find a reranker like any model; one with remote code must be trusted by name."""
    return resolve_model(name, access, emit, kind="reranker")


def load_reranker(model: ResolvedModel, dtype: str, trusted: Sequence[str] = ()) -> Reranker:
    """Load a reranker on the host, from its resolved path; without network, and code or pickles only if trusted."""
    is_trusted = require_trust(model.spec, model.path, trusted)
    import_quickly("sentence_transformers")
    import torch
    from sentence_transformers import CrossEncoder

    _require_scores(model)
    options = model_options(getattr(torch, dtype), is_trusted)
    try:
        with quiet_loading():
            if is_trusted and _ranks_by_own_code(model):
                return _load_own_code(model, options)
            loaded = CrossEncoder(
                str(model.path), device="cpu", local_files_only=True, trust_remote_code=is_trusted, model_kwargs=options
            )
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{model.name} cannot be loaded from {model.path}: {error}") from error
    loaded.eval()
    return Reranker(model.name, loaded)


def _require_scores(model: ResolvedModel) -> None:
    """Reject a model without a classification head: it would be initialised randomly."""
    config = read_object(model.path / "config.json")
    pooled = any(module.type.endswith(".Pooling") for module in read_modules(model.path))
    named = [] if "auto_map" in config else config.get("architectures") or []
    architectures = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    if pooled or any(name.endswith(WITHOUT_SCORES) for name in architectures):
        raise ModelError(f"{model.name} is an embedding model, not a reranker ({model.path}). Choose a reranker.")


def _ranks_by_own_code(model: ResolvedModel) -> bool:
    """Whether only the model's own code can rank: it is registered so, or a folder whose code is no classifier."""
    if model.spec is not None:
        return model.spec.remote_code
    own = read_object(model.path / "config.json").get("auto_map")
    return isinstance(own, dict) and "AutoModel" in own and "AutoModelForSequenceClassification" not in own


def _load_own_code(model: ResolvedModel, options: dict[str, Any]) -> Reranker:
    import transformers

    untyped: Any = transformers.AutoModel
    loaded = untyped.from_pretrained(str(model.path), trust_remote_code=True, local_files_only=True, **options).eval()
    if not hasattr(loaded, "rerank"):
        raise ModelError(f"{model.name} has no 'rerank' in its own code ({model.path}).")
    return ListReranker(model.name, loaded)
