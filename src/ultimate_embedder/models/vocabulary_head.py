"""The last layer of a SPLADE, a few tokens at a time: logits for every word of the vocabulary, pooled over the tokens.

Logits of all tokens at once are rows x tokens x vocabulary: 1 GB for 16,384 tokens of BERT in fp16, many times what the
rest of the model takes. They are needed only to find the largest of each word, or to sum them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ultimate_embedder.models.layers import NotApplicableError

if TYPE_CHECKING:
    import torch

PIECE_TOKENS = 16  # of each row: enough for fast matrix products, and the logits are no larger than other activations
SMALL_PIECE_TOKENS = 1
POOLING = "SpladePooling"
TOLERANCE = 1e-4


def pool_in_pieces(model: Any, features: Mapping[str, Any]) -> bool:
    """Replace the last layer and the pooling of a loaded SPLADE by one module that computes both in pieces.

    False, and nothing is changed, if the model is built in another way or would give other vectors for `features`.
    """
    import torch

    if len(model) < 2 or type(model[1]).__name__ != POOLING:
        return False
    transformer: Any = getattr(model[0], "auto_model", None)
    pooling = model[1]
    decoder = transformer.get_output_embeddings() if hasattr(transformer, "get_output_embeddings") else None
    holders = _holders(transformer, decoder)
    if not isinstance(decoder, torch.nn.Linear) or len(holders) != 1:
        return False
    ((holder, name),) = holders
    with torch.inference_mode():
        before = model(dict(features))["sentence_embedding"]
        model[1] = _head(decoder, transformer.get_input_embeddings(), pooling)
        setattr(holder, name, torch.nn.Identity())  # its output is what the head takes
        after = model(dict(features))["sentence_embedding"]
    if before.shape == after.shape and torch.allclose(before.float(), after, atol=_tolerance(before)):
        _forget_bias(transformer, decoder)
        return True
    setattr(holder, name, decoder)
    model[1] = pooling
    return False


def _holders(model: Any, wanted: Any) -> list[tuple[torch.nn.Module, str]]:
    """The modules that have this one as a child, and its name there."""
    if model is None or wanted is None:
        return []
    return [(module, name) for module in model.modules() for name, each in module.named_children() if each is wanted]


@contextlib.contextmanager
def small_pieces(model: torch.nn.Module) -> Iterator[None]:
    """Let the head compute one token of each row at a time within the block."""
    heads: list[Any] = [module for module in model.modules() if hasattr(module, "piece_tokens")]
    if not heads:
        raise NotApplicableError("the model has no vocabulary head")
    for head in heads:
        head.piece_tokens = SMALL_PIECE_TOKENS
    try:
        yield
    finally:
        for head in heads:
            head.piece_tokens = PIECE_TOKENS


def _tolerance(vectors: torch.Tensor) -> float:
    import torch

    return TOLERANCE if vectors.dtype == torch.float32 else 100 * TOLERANCE


def _forget_bias(transformer: torch.nn.Module, decoder: torch.nn.Linear) -> None:
    """Drop other names of the bias: weights with two names become two copies on some devices."""
    for module in transformer.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and weight is decoder.bias:
                module._parameters[name] = None


def _head(decoder: torch.nn.Linear, words: torch.nn.Module, pooling: Any) -> torch.nn.Module:
    import torch

    tied = getattr(words, "weight", None) is decoder.weight

    class VocabularyHead(torch.nn.Module):
        """Logits and their pooling. Weights that the embedding has too stay the embedding's."""

        def __init__(self) -> None:
            super().__init__()
            self.decoder = None if tied else decoder
            self.words = words if tied else None
            self.bias = decoder.bias if tied else None
            self.takes_largest = pooling.pooling_strategy == "max"
            self.log_twice = pooling.activation_function == "log1p_relu"
            self.piece_tokens = PIECE_TOKENS

        def get_embedding_dimension(self) -> int:
            """The size of the vocabulary."""
            return int(decoder.out_features)

        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            hidden, mask = features["token_embeddings"], features["attention_mask"].bool()
            if self.takes_largest:  # instead of padding the first token again, which changes no maximum
                first = torch.arange(len(mask), device=mask.device), mask.int().argmax(dim=1)
                hidden = torch.where(mask[..., None], hidden, hidden[first][:, None])
            pooled = None
            for start in range(0, hidden.shape[1], self.piece_tokens):
                piece = slice(start, start + self.piece_tokens)
                # contiguous: else the product and its sum with the bias would be two tensors of this size
                part = self._pooled(self._logits(hidden[:, piece].contiguous()), mask[:, piece])
                if pooled is None:
                    pooled = part
                else:
                    pooled = torch.maximum(pooled, part) if self.takes_largest else pooled + part
            assert pooled is not None
            # the activation never falls: that of the largest logit is the largest
            pooled = self._activated(pooled.float()) if self.takes_largest else pooled
            return {**features, "sentence_embedding": pooled}

        def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
            if self.words is None:
                return self.decoder(hidden)  # type: ignore[no-any-return, misc]
            return torch.nn.functional.linear(hidden, self.words.weight, self.bias)  # type: ignore[arg-type]

        def _pooled(self, logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            if self.takes_largest:
                return logits.amax(dim=1)
            return self._activated(logits.masked_fill_(~mask[..., None], 0)).sum(dim=1, dtype=torch.float32)

        def _activated(self, logits: torch.Tensor) -> torch.Tensor:
            active = logits.relu_().log1p_()
            return active.log1p_() if self.log_twice else active

    return VocabularyHead()
