"""A forward without padding (sequence packing), for every architecture in transformers' attention registry.

The rows of a batch are concatenated to one row. All operations except attention process tokens independently, so
nothing else changes; attention runs once per group of rows of equal length, without a mask. Memory is linear in tokens.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.models.canary import row_cosines

if TYPE_CHECKING:
    import torch

NAME = "packed_or_sdpa"
LEAST_COSINE = {"float32": 0.99999, "float16": 0.999, "bfloat16": 0.99}  # between packed and padded rows
Groups = tuple[tuple[int, int], ...]  # (rows, length) in the order of the tokens

_groups: ContextVar[Groups | None] = ContextVar("groups", default=None)


@dataclass(frozen=True)
class PackingTrial:
    """Whether packed rows give the same vectors; if so, `first_position` is their first position id."""

    first_position: int | None


def try_packing(
    transformer: Any,
    padded: Callable[[], np.ndarray],
    packed: Callable[[int], np.ndarray],
    dtype: str,
    is_out_of_memory: Callable[[BaseException], bool],
) -> PackingTrial | None:
    """Compare the vectors of `padded` and `packed` rows, for each first position that a model may have.

    None if there was not enough memory to compare them: it may be tried again.
    """
    if transformer is None or not use_packed_attention(transformer):
        return PackingTrial(None)
    padding = getattr(transformer.config, "pad_token_id", None) or 0
    known = True
    try:
        reference = padded()
        for first_position in (0, padding + 1):  # RoBERTa counts positions from the padding id + 1
            if row_cosines(packed(first_position), reference).min() > LEAST_COSINE[dtype]:
                return PackingTrial(first_position)
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        # out of memory: unknown; any other error: the model uses its inputs in another way and needs padding
        known = not is_out_of_memory(error)
    use_plain_attention(transformer)
    return PackingTrial(None) if known else None


def lay_end_to_end(rows: Sequence[np.ndarray], first_position: int) -> tuple[dict[str, Any], Groups]:
    """Features of rows sorted by length, concatenated to one row, and their groups."""
    import torch

    lengths = [len(row) for row in rows]
    positions = np.concatenate([np.arange(first_position, first_position + length) for length in lengths])
    ids = np.concatenate(rows).astype(np.int64)
    changes = [0, *(n for n in range(1, len(lengths)) if lengths[n] != lengths[n - 1]), len(lengths)]
    groups = tuple((stop - start, lengths[start]) for start, stop in itertools.pairwise(changes))
    features = {"input_ids": torch.from_numpy(ids)[None], "position_ids": torch.from_numpy(positions)[None]}
    return features, groups


def unpack(hidden: torch.Tensor, groups: Groups) -> tuple[torch.Tensor, torch.Tensor]:
    """Split the token vectors of a packed row into padded rows with a mask, as pooling needs them."""
    import torch

    longest = max(length for _, length in groups)
    count = sum(rows for rows, _ in groups)
    mask = torch.zeros(count, longest, dtype=torch.long, device=hidden.device)
    if len(groups) == 1:
        return hidden[0].view(count, longest, -1), mask.fill_(1)
    padded = hidden.new_zeros(count, longest, hidden.shape[-1])
    row = token = 0
    for rows, length in groups:
        padded[row : row + rows, :length] = hidden[0, token : token + rows * length].view(rows, length, -1)
        mask[row : row + rows, :length] = 1
        row, token = row + rows, token + rows * length
    return padded, mask


@contextlib.contextmanager
def packed(groups: Groups) -> Iterator[None]:
    """Restrict attention to the rows of `groups` within the block."""
    token = _groups.set(groups)
    try:
        yield
    finally:
        _groups.reset(token)


def use_packed_attention(model: Any) -> bool:
    """Register attention for packed rows in a transformers model; False if the model does not use the registry."""
    _register()
    if getattr(model.config, "_attn_implementation", None) != "sdpa" or not model._can_set_attn_implementation():
        return False
    model.set_attn_implementation(NAME)
    return bool(model.config._attn_implementation == NAME)


def use_plain_attention(model: Any) -> None:
    """Restore the attention of a model."""
    model.set_attn_implementation("sdpa")


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain_attention, plain_mask = ALL_ATTENTION_FUNCTIONS["sdpa"], ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        groups = _groups.get()
        if groups is None:
            return plain_attention(module, query, key, value, attention_mask, **options)
        return _attend(module, query, key, value, groups, options.get("scaling"), options.get("is_causal")), None

    def mask(*arguments: Any, **options: Any) -> Any:
        return plain_mask(*arguments, **options) if _groups.get() is None else None

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def _attend(
    module: Any, query: Any, key: Any, value: Any, groups: Groups, scaling: float | None, is_causal: bool | None
) -> torch.Tensor:
    import torch

    causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
    _, heads, tokens, dim = query.shape
    shared_keys = key.shape[1] != heads  # grouped-query attention
    attended = torch.empty(1, tokens, heads, dim, dtype=query.dtype, device=query.device)
    start = 0
    for rows, length in groups:
        stop = start + rows * length

        def part(tensor: Any, start: int = start, stop: int = stop, rows: int = rows, length: int = length) -> Any:
            return tensor[0, :, start:stop].unflatten(1, (rows, length)).transpose(0, 1)

        output = torch.nn.functional.scaled_dot_product_attention(
            part(query), part(key), part(value), is_causal=causal, scale=scaling, enable_gqa=shared_keys
        )
        attended[0, start:stop] = output.transpose(1, 2).flatten(0, 1)
        start = stop
    return attended
