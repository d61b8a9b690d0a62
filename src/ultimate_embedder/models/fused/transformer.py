"""The layers of BERT and RoBERTa with fewer and larger operations, from the weights as they are in the model's file.

Query, key and value are one product; a product adds to the residual; the type of a token, which is always the first, is
part of its position. Where only the first token of a row is pooled, the last layer computes no other: of six layers
that saves a seventh of all products. On 2 cores with AVX2, products take four fifths of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import torch
from torch.nn import Module, ModuleList
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ultimate_embedder.models.attention import NAME, Groups, current_groups
from ultimate_embedder.models.fused.attention import attend
from ultimate_embedder.models.fused.native import Native, native
from ultimate_embedder.models.fused.products import (
    Int8Product,
    NativeProduct,
    Product,
    constant,
    in_blocks,
    make_product,
)
from ultimate_embedder.models.fused.settings import NATIVE, FusedSettings, Kernels, NotFusibleError

Tensor = torch.Tensor
PREFIXES = ("", "bert.", "roberta.")


class Weights:
    """The tensors of a model's file, as float32, by their names in transformers."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        known = [prefix for prefix in PREFIXES if f"{prefix}embeddings.word_embeddings.weight" in tensors]
        if len(known) != 1:
            raise NotFusibleError("its weights have other names")
        self._prefix = known[0]

    def get(self, name: str, *shape: int) -> Tensor:
        """A tensor, which must have this shape; -1 stands for any size."""
        tensor = self._tensors.get(self._prefix + name)
        if tensor is None:
            raise NotFusibleError(f"{self._prefix}{name} is not in its weights")
        sizes = tuple(tensor.shape)
        if len(sizes) != len(shape) or any(-1 != want != has for want, has in zip(shape, sizes, strict=True)):
            raise NotFusibleError(f"{self._prefix}{name} has the shape {sizes}")
        return tensor.to(torch.float32)

    def joined(self, names: list[str], *shape: int) -> Tensor:
        """Several tensors of one shape, one below the other."""
        return torch.cat([self.get(name, *shape) for name in names])

    def count_layers(self) -> int:
        """How many layers they are of."""
        start = f"{self._prefix}encoder.layer."
        numbers = {name[len(start) :].partition(".")[0] for name in self._tensors if name.startswith(start)}
        if numbers != set(map(str, range(len(numbers)))) or not numbers:
            raise NotFusibleError("its layers have other names")
        return len(numbers)


class TokenVectors(dict[str, Tensor]):
    """What transformers returns, as far as it is used."""

    @property
    def last_hidden_state(self) -> Tensor:
        """Token vectors of (rows, tokens, dimensions)."""
        return self["last_hidden_state"]


class FusedTransformer(Module):
    """A transformer whose rows are padded, or packed within `attention.packed`.

    With CLS pooling, of each row's token vectors only the first is computed; the others are zeros.
    """

    def __init__(self, weights: Weights, settings: FusedSettings, kernels: Kernels) -> None:
        super().__init__()
        words = weights.get("embeddings.word_embeddings.weight", -1, -1)
        size = words.shape[1]
        if size % settings.heads:
            raise NotFusibleError(f"{settings.heads} heads do not divide {size} dimensions")
        positions = weights.get("embeddings.position_embeddings.weight", -1, size)
        types = weights.get("embeddings.token_type_embeddings.weight", -1, size)
        self.words = constant(words)
        self.positions = constant(positions + types[0])
        self.norm = make_norm(kernels.products, weights, "embeddings.LayerNorm", size, settings.layer_norm_eps)
        last = weights.count_layers() - 1
        pools_first = settings.pooling == "cls"
        self.layers = ModuleList(
            FusedLayer(weights, n, settings, kernels, size=size, first_only=pools_first and n == last)
            for n in range(last + 1)
        )
        self.settings = settings
        self.config = SimpleNamespace(
            _attn_implementation=NAME,
            hidden_size=size,
            max_position_embeddings=len(positions) - settings.first_position,
            pad_token_id=settings.padding_id,
            vocab_size=len(words),
        )

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> TokenVectors:
        """Token vectors of rows of token ids."""
        rows, length = input_ids.shape
        groups = current_groups()
        ids = input_ids.reshape(-1)
        places = self._places(input_ids) if position_ids is None else position_ids
        hidden = F.embedding(ids, self.words).add_(F.embedding(places.reshape(-1), self.positions))
        hidden = self.norm(hidden)
        mask = None
        if groups is None:
            groups = ((rows, length),)
            mask = None if attention_mask is None else attention_mask[:, None, None].bool()
        for layer in self.layers:
            hidden = layer(hidden, groups, mask)
        return TokenVectors(last_hidden_state=hidden.view(rows, length, -1))

    def _places(self, input_ids: Tensor) -> Tensor:
        """Position ids of padded rows; padding inside a text has no place of its own in RoBERTa."""
        if not self.settings.counts_from_padding:
            return torch.arange(input_ids.shape[1]).expand_as(input_ids)
        is_token = input_ids.ne(self.settings.padding_id).long()
        return is_token.cumsum(1) * is_token + self.settings.padding_id


class FusedLayer(Module):
    """Attention and feed-forward, each added to its input and normalised. Changes its input.

    With `first_only` it computes the first token of each row alone, and zeros for the others.
    """

    def __init__(
        self, weights: Weights, number: int, settings: FusedSettings, kernels: Kernels, *, size: int, first_only: bool
    ) -> None:
        super().__init__()
        start, eps = f"encoder.layer.{number}.", settings.layer_norm_eps

        def product(names: list[str], outputs: int, inputs: int) -> Product:
            weight = weights.joined([f"{start}{name}.weight" for name in names], outputs, inputs)
            bias = weights.joined([f"{start}{name}.bias" for name in names], len(weight) // len(names))
            return make_product(kernels.products, weight, bias)

        self.attention_in = product([f"attention.self.{name}" for name in ("query", "key", "value")], size, size)
        self.attention_out = product(["attention.output.dense"], size, size)
        self.attention_norm = make_norm(kernels.products, weights, f"{start}attention.output.LayerNorm", size, eps)
        self.inner = product(["intermediate.dense"], -1, size)
        self.outer = product(["output.dense"], size, len(self.inner.bias))
        self.norm = make_norm(kernels.products, weights, f"{start}output.LayerNorm", size, eps)
        self.heads, self.first_only = settings.heads, first_only
        self._own = native() if kernels.attention == NATIVE else None

    def forward(self, hidden: Tensor, groups: Groups, mask: Tensor | None) -> Tensor:
        """The next hidden state of (tokens, dimensions)."""
        joined = self._queries_keys_values(hidden, has_mask=mask is not None)
        attended = attend(joined, groups, self.heads, mask, self._own, first_only=self.first_only)
        step = self.attention_in.step_rows
        if not self.first_only:
            return in_blocks(self._feed_forward, step, hidden, hidden, attended)
        firsts, found = _first_places(groups), torch.zeros_like(hidden)
        asked = hidden[firsts]
        found[firsts] = in_blocks(self._feed_forward, step, asked, asked, attended)
        return found

    def _queries_keys_values(self, hidden: Tensor, *, has_mask: bool) -> Tensor:
        product = self.attention_in
        if isinstance(product, (NativeProduct, Int8Product)) and self._own is not None and not has_mask:
            return product.in_panels(hidden)
        if product.step_rows == 1:  # blocks cost a copy: of use only where each number of rows costs memory
            joined: Tensor = product(hidden)
            return joined
        return in_blocks(product, product.step_rows, hidden.new_empty(len(hidden), len(product.bias)), hidden)

    def _feed_forward(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """What follows attention, token by token. May change its first input, and return it."""
        hidden = self.attention_norm(self.attention_out.added_to(hidden, attended))
        result: Tensor = self.norm(self.outer.added_to(hidden, self.inner.gelu(hidden)))
        return result


class Norm(Module):
    """A layer norm."""

    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        super().__init__()
        self.weight = constant(weights.get(f"{name}.weight", size))
        self.bias = constant(weights.get(f"{name}.bias", size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """The normalised tokens, in a new tensor."""
        return F.layer_norm(hidden, self.weight.shape, self.weight, self.bias, self.eps)


class NativeNorm(Norm):
    """A layer norm by our own code."""

    def __init__(self, weights: Weights, name: str, size: int, eps: float, kernels: Native) -> None:
        super().__init__(weights, name, size, eps)
        self._kernels = kernels

    def forward(self, hidden: Tensor) -> Tensor:
        """The normalised tokens, in place."""
        return self._kernels.normalize(hidden, self.weight, self.bias, self.eps)


def make_norm(kind: str, weights: Weights, name: str, size: int, eps: float) -> Norm:
    """A layer norm beside products of this kind."""
    kernels = native() if kind == NATIVE else None
    if kernels is None or size % kernels.panel_outputs:
        return Norm(weights, name, size, eps)
    return NativeNorm(weights, name, size, eps, kernels)


def _first_places(groups: Groups) -> Tensor:
    """Where each row begins among the tokens of all rows."""
    lengths = torch.tensor([length for rows, length in groups for _ in range(rows)])
    return lengths.cumsum(0) - lengths
