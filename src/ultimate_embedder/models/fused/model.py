"""A fused model: tokenizer, transformer, pooling, with what `Encoder` needs of a `SentenceTransformer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn import Module, Sequential

from ultimate_embedder.models.fused.settings import FusedSettings
from ultimate_embedder.models.fused.tokenizer import FileTokenizer
from ultimate_embedder.models.fused.transformer import FusedTransformer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Features = dict[str, Any]
SentenceModel: TypeAlias = "SentenceTransformer | FusedModel"


class FusedModel(Sequential):
    """The modules of a model, one after the other."""

    fused = True

    def __init__(self, transformer: FusedTransformer, tokenizer: FileTokenizer, settings: FusedSettings) -> None:
        modules: list[Module] = [FusedModule(transformer), Pooling(settings.pooling)]
        super().__init__(*modules, *([Normalize()] if settings.normalizes else []))
        self.tokenizer = tokenizer
        self.max_seq_length = settings.max_seq_length
        self.prompts = dict(settings.prompts)
        self.default_prompt_name = settings.default_prompt_name
        self._dim = int(transformer.config.hidden_size)

    def get_embedding_dimension(self) -> int:
        """Dimension of the vectors."""
        return self._dim

    def preprocess(self, texts: Sequence[str], prompt: str | None = None) -> Features:
        """Padded features of these texts."""
        found = self.tokenizer(
            [(prompt or "") + text for text in texts], truncation=True, max_length=self.max_seq_length
        )
        rows = [torch.tensor(ids) for ids in found["input_ids"]]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.tokenizer.pad_token_id)
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(padded.shape[1])[None] < lengths[:, None]
        return {"input_ids": padded, "attention_mask": mask.long()}


class FusedModule(Module):
    """The first module: token ids to token vectors."""

    def __init__(self, transformer: FusedTransformer) -> None:
        super().__init__()
        self.auto_model = transformer

    def forward(self, features: Features) -> Features:
        """The features with token vectors."""
        found = self.auto_model(features["input_ids"], features["attention_mask"], features.get("position_ids"))
        return {**features, "token_embeddings": found.last_hidden_state}


class Pooling(Module):
    """The mean of a row's token vectors, or the first of them."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, features: Features) -> Features:
        """The features with a vector for each row."""
        tokens: torch.Tensor = features["token_embeddings"]
        if self.mode == "cls":
            return {**features, "sentence_embedding": tokens[:, 0]}
        mask = features["attention_mask"][:, :, None].to(tokens.dtype)
        return {**features, "sentence_embedding": (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)}


class Normalize(Module):
    """Vectors of length 1."""

    def forward(self, features: Features) -> Features:
        """The features with these vectors."""
        vectors = torch.nn.functional.normalize(features["sentence_embedding"], dim=1)
        return {**features, "sentence_embedding": vectors}
