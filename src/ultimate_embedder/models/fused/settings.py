"""What a fused model takes over from the model that sentence-transformers has loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.models.metadata import POSITIONS_AFTER_PADDING
from ultimate_embedder.models.tokenize import without_state
from ultimate_embedder.state import Fields, UnfitError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FUSIBLE = ("BertModel", "CamembertModel", "RobertaModel", "XLMRobertaModel")  # their layers are the same
LONGEST = 1 << 20  # tokens; tokenizers without a limit have 1e30
POOLING_MODES = ("cls", "mean")
BLAS, ONEDNN, NATIVE = PRODUCT_KINDS = ("blas", "onednn", "native")
TORCH = "torch"


class NotFusibleError(UltimateEmbedderError):
    """A model that only transformers can run; the message says why."""


@dataclass(frozen=True)
class Kernels:
    """What computes products and attention: the fastest on this processor."""

    products: str = BLAS
    attention: str = TORCH

    @classmethod
    def from_state(cls, fields: Fields) -> Kernels:
        """As it was written; raises `UnfitError` for what it cannot be."""
        found = cls(fields.text("products"), fields.text("attention"))
        if found.products not in PRODUCT_KINDS or found.attention not in (TORCH, NATIVE):
            raise UnfitError(f"products are {found.products!r}, attention is {found.attention!r}")
        return found

    @property
    def need_native(self) -> bool:
        """Whether they are, in part, those that are compiled here."""
        return NATIVE in (self.products, self.attention)


@dataclass(frozen=True)
class FusedSettings:
    """What the files of a model say, as sentence-transformers reads them."""

    heads: int
    layer_norm_eps: float
    padding_id: int
    """Of the transformer; its tokenizer may have another."""
    counts_from_padding: bool
    """Whether the first position is the padding id + 1, as in RoBERTa."""
    pad_token_id: int
    max_seq_length: int
    prompts: Mapping[str, str]
    default_prompt_name: str | None
    pooling: str
    normalizes: bool

    @property
    def first_position(self) -> int:
        """The position id of the first token."""
        return self.padding_id + 1 if self.counts_from_padding else 0

    def to_state(self) -> dict[str, Any]:
        """As a state file has it."""
        return {**dataclasses.asdict(self), "prompts": dict(self.prompts)}

    @classmethod
    def from_state(cls, fields: Fields) -> FusedSettings:
        """As it was written; raises `UnfitError` for what it cannot be."""
        pooling = fields.text("pooling")
        if pooling not in POOLING_MODES:
            raise UnfitError(f"pooling is {pooling!r}")
        prompts = fields.inner("prompts")
        return cls(
            heads=fields.count("heads", least=1),
            layer_norm_eps=fields.number("layer_norm_eps"),
            padding_id=fields.count("padding_id"),
            counts_from_padding=fields.flag("counts_from_padding"),
            pad_token_id=fields.count("pad_token_id"),
            max_seq_length=fields.count("max_seq_length", least=1),
            prompts={name: prompts.text(name) for name in prompts},
            default_prompt_name=fields.text_or_none("default_prompt_name"),
            pooling=pooling,
            normalizes=fields.flag("normalizes"),
        )


def settings_of(loaded: SentenceTransformer, folder: Path) -> FusedSettings:
    """The settings of a loaded model; raises `NotFusibleError` if it has anything that a fused model cannot do."""
    transformer: Any = getattr(loaded[0], "auto_model", None)
    kind = type(transformer).__name__
    if kind not in FUSIBLE or not type(transformer).__module__.startswith("transformers.models."):
        raise NotFusibleError(f"it is a {kind}")
    config = transformer.config
    unlike = {
        "hidden_act": config.hidden_act != "gelu",
        "position_embedding_type": getattr(config, "position_embedding_type", "absolute") not in ("absolute", None),
        "is_decoder": getattr(config, "is_decoder", False),
        "add_cross_attention": getattr(config, "add_cross_attention", False),
        "pad_token_id": not isinstance(config.pad_token_id, int),
    }
    if found := [name for name, is_unlike in unlike.items() if is_unlike]:
        raise NotFusibleError(f"its config has a {found[0]} of another kind")
    limit = loaded.max_seq_length or 0
    if not 0 < limit < LONGEST:
        raise NotFusibleError("it has no token limit")
    pooling, normalizes = _modules(loaded)
    _require_same_tokenizer(loaded, folder)
    return FusedSettings(
        heads=config.num_attention_heads,
        layer_norm_eps=config.layer_norm_eps,
        padding_id=config.pad_token_id,
        counts_from_padding=config.model_type in POSITIONS_AFTER_PADDING,
        pad_token_id=int(loaded.tokenizer.pad_token_id),
        max_seq_length=int(limit),
        prompts={name: text for name, text in (loaded.prompts or {}).items() if text is not None},
        default_prompt_name=loaded.default_prompt_name,
        pooling=pooling,
        normalizes=normalizes,
    )


def _modules(loaded: SentenceTransformer) -> tuple[str, bool]:
    """How a model pools, and whether it normalises; nothing else may follow its transformer."""
    kinds = [type(module).__name__ for module in loaded]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise NotFusibleError(f"its modules are {', '.join(kinds)}")
    pooling: Any = loaded[1]
    mode = _pooling_mode(pooling)
    if mode not in POOLING_MODES or not pooling.include_prompt:
        raise NotFusibleError(f"it pools by {mode}")
    return mode, len(kinds) == 3


def _pooling_mode(pooling: Any) -> str:
    """A word, or a tuple of them; older versions have a method that joins them."""
    mode = getattr(pooling, "pooling_mode", None) or pooling.get_pooling_mode_str()
    return mode if isinstance(mode, str) else "+".join(mode)


def _require_same_tokenizer(loaded: SentenceTransformer, folder: Path) -> None:
    """Raise `NotFusibleError` if transformers made another tokenizer than the model's file has."""
    from tokenizers import Tokenizer

    theirs: Any = loaded.tokenizer
    sides = (getattr(theirs, "padding_side", None), getattr(theirs, "truncation_side", None))
    backend = getattr(theirs, "backend_tokenizer", None)
    file = folder / "tokenizer.json"
    if backend is None or sides != ("right", "right") or not file.is_file() or theirs.pad_token_id is None:
        raise NotFusibleError("its tokenizer is of another kind")
    if without_state(backend) != without_state(Tokenizer.from_file(str(file))):
        raise NotFusibleError("transformers changes what tokenizer.json says")
