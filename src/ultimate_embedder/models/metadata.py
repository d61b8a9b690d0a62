"""Metadata of a model, from its files or from the loaded model: dimension, prompts, token limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.models.config_files import read_modules, read_object
from ultimate_embedder.types import ModelSpec, Prompt, ResolvedModel

if TYPE_CHECKING:
    from ultimate_embedder.models.fused.model import SentenceModel

# the names that sentence-transformers tries, in its order
DOCUMENT_PROMPT_NAMES = ("document", "passage", "corpus")
QUERY_PROMPT_NAMES = ("query",)
# architectures that count positions from the padding id + 1; for MPNet it is always 1
POSITIONS_AFTER_PADDING = ("camembert", "longformer", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl")
UNLIMITED_TOKENS = 1_000_000  # tokenizers without a limit have 1e30


def native_dim(model: ResolvedModel) -> int | None:
    """Dimension of a model's vectors, from the registry or its files; None if unknown without loading it."""
    if model.spec is not None and model.spec.dim:
        return model.spec.dim
    return _pooled_dim(model.path)


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata in the files of a model; None if missing."""

    dim: int | None
    max_tokens: int | None
    document_prompt: str | None
    query_prompt: str | None


def read_metadata(folder: Path) -> ModelMetadata:
    """Read the metadata of a model without loading it."""
    config = read_object(folder / "config.json")
    prompts = read_object(folder / "config_sentence_transformers.json").get("prompts")
    own = _count(read_object(folder / "sentence_bert_config.json").get("max_seq_length"))
    limits = [
        _count(read_object(folder / "tokenizer_config.json").get("model_max_length")),
        _count(config.get("max_position_embeddings")),
    ]
    possible = [limit for limit in limits if limit and limit < UNLIMITED_TOKENS]
    return ModelMetadata(
        dim=_pooled_dim(folder) or _count(config.get("hidden_size")),
        max_tokens=own or min(possible, default=None),
        document_prompt=_prompt(prompts, DOCUMENT_PROMPT_NAMES),
        query_prompt=_prompt(prompts, QUERY_PROMPT_NAMES),
    )


def _pooled_dim(folder: Path) -> int | None:
    for name in ("2_Dense/config.json", "1_Pooling/config.json"):
        if described := read_object(folder / name):
            keys = ("out_features", "embedding_dimension", "word_embedding_dimension")
            return next((found for key in keys if (found := _count(described.get(key)))), None)
    return None


def _count(value: Any) -> int | None:
    """A number of tokens or dimensions; None for anything else that a file may say."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        return None
    return int(value) if isinstance(value, int) or math.isfinite(value) else None


def _prompt(prompts: Any, names: tuple[str, ...]) -> str | None:
    texts = [prompts.get(name) for name in names] if isinstance(prompts, dict) else []
    return next((text for text in texts if text and isinstance(text, str)), None)


def check_dim(model: ResolvedModel, dim: int | None, loaded_dim: int | None = None) -> None:
    """Raise `UsageError` if a model in the registry cannot be truncated to `dim` dimensions."""
    spec: ModelSpec | None = model.spec
    native = loaded_dim or (spec.dim if spec else 0)
    if dim is None or dim == native or not native:
        return
    if dim > native:
        raise UsageError(f"--dim {dim}: vectors of {model.name} have {native} dimensions. Lower --dim.")
    if spec is not None and spec.dim and dim not in spec.matryoshka_dims:
        valid = ", ".join(map(str, spec.matryoshka_dims))
        why = f"it supports {valid}" if valid else "it is not a Matryoshka model"
        raise UsageError(f"--dim {dim}: not for {model.name}: {why}. Drop --dim to keep all {native}.")


def position_limit(model: ResolvedModel) -> int | None:
    """The number of positions of a model, from its files; None if unknown without loading it.

    A model with remote code may count differently and is checked after loading (`token_limit`).
    """
    config = _transformer_config(model.path)
    positions, architecture = config.get("max_position_embeddings"), config.get("model_type")
    if not isinstance(positions, int) or "auto_map" in config:
        return None
    if architecture not in POSITIONS_AFTER_PADDING:
        return positions
    padding = 1 if architecture == "mpnet" else config.get("pad_token_id", 1)
    return positions - (padding + 1) if isinstance(padding, int) else None


def check_max_tokens(model: ResolvedModel, wanted: int | None) -> None:
    """Raise `UsageError` for more tokens than a model has positions for, if its files say how many."""
    limit = position_limit(model)
    if wanted is not None and limit is not None and wanted > limit:
        raise _too_many_tokens(model.name, wanted, limit)


def _transformer_config(folder: Path) -> dict[str, Any]:
    """The configuration of the first module; empty if unreadable."""
    try:
        modules = read_modules(folder)
        return read_object(folder / (modules[0].path if modules else "") / "config.json")
    except ModelError:  # reported when the model is loaded
        return {}


def _too_many_tokens(name: str, wanted: int, limit: int) -> UsageError:
    return UsageError(f"--max-tokens {wanted}: {name} supports at most {limit} tokens. Lower --max-tokens.")


def own_prompt(model: SentenceModel, wanted: Prompt | None, names: tuple[str, ...]) -> str:
    """The prompt in the model's files, by the registry's name first; else the registry's text; else empty."""
    prompts = model.prompts or {}
    for name in ((wanted.name,) if wanted else ()) + names:
        if prompts.get(name):
            return str(prompts[name])
    if wanted is not None:
        return wanted.text
    default = model.default_prompt_name
    return str(prompts.get(default) or "") if default else ""


def token_limit(model: SentenceModel, name: str, wanted: int | None, cap: int | None) -> int:
    """The token limit: `wanted` if the model has positions for it, else the model's limit, capped by `cap`."""
    own = model.max_seq_length or UNLIMITED_TOKENS
    hard = _position_limit(model)
    if wanted is None:
        if not isinstance(own, int | float) or not own >= 1:
            raise ModelError(f"{name} has {own!r} for its token limit (max_seq_length). Give one with --max-tokens.")
        return int(min(own, hard, cap or own))
    if wanted > hard:
        raise _too_many_tokens(name, wanted, hard)
    return wanted


def _position_limit(model: SentenceModel) -> int:
    for module in model.modules():
        table: Any = getattr(module, "position_embeddings", None)
        if hasattr(table, "num_embeddings"):
            # RoBERTa counts positions from padding_idx + 1
            padding = getattr(module, "padding_idx", None)
            return int(table.num_embeddings) - (padding + 1 if isinstance(padding, int) else 0)
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    return int(getattr(config, "max_position_embeddings", None) or UNLIMITED_TOKENS)


def loaded_dim(model: SentenceModel) -> int:
    """Dimension of the vectors of a loaded model."""
    dim = model.get_embedding_dimension()
    if dim is None:
        raise ModelError("the model does not specify the dimension of its vectors")
    return int(dim)


def ends_normalized(model: SentenceModel) -> bool:
    """Whether a loaded model normalises its vectors."""
    return type(list(model.children())[-1]).__name__ == "Normalize"
