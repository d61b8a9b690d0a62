"""A forward without padding (sequence packing), for every architecture in transformers' attention registry.

The rows of a batch are concatenated to one row. All operations except attention process tokens independently, so
nothing else changes; attention (`attention.py`) runs once per group of rows of equal length, without a mask. Memory is
linear in tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.models.attention import Groups, uses_attention
from ultimate_embedder.models.canary import row_cosines

if TYPE_CHECKING:
    import torch

LEAST_COSINE = {"float32": 0.99999, "float16": 0.999, "bfloat16": 0.99}  # between packed and padded rows


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
    if transformer is None or not uses_attention(transformer):
        return PackingTrial(None)
    padding = getattr(transformer.config, "pad_token_id", None) or 0
    try:
        reference = padded()
        for first_position in (0, padding + 1):  # RoBERTa counts positions from the padding id + 1
            if row_cosines(packed(first_position), reference).min() > LEAST_COSINE[dtype]:
                return PackingTrial(first_position)
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        # out of memory: unknown; any other error: the model uses its inputs in another way and needs padding
        if is_out_of_memory(error):
            return None
    return PackingTrial(None)


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
