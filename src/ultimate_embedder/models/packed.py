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

from ultimate_embedder.models.attention import Groups, noted_windows, uses_attention
from ultimate_embedder.models.canary import row_cosines

if TYPE_CHECKING:
    import torch

LEAST_COSINE = {"float32": 0.99999, "float16": 0.999, "bfloat16": 0.99, "int8": 0.99}  # between packed and padded rows


@dataclass(frozen=True)
class PackingTrial:
    """Whether packed rows give the same vectors; if so, `first_position` is their first position id."""

    first_position: int | None
    not_with: frozenset[int] = frozenset()
    """Token ids that rows must not hold to be packed: those of the padding token, where positions depend on it."""

    longest: int | None = None
    """Tokens of a row, at the most: packed rows have no mask, and layers may attend only to tokens nearby."""

    def allows(self, rows: Sequence[np.ndarray]) -> bool:
        """Whether these rows can be packed."""
        if self.first_position is None:
            return False
        if self.longest is not None and max(map(len, rows)) > self.longest:
            return False
        return not (self.not_with and any(np.isin(row, list(self.not_with)).any() for row in rows))


@dataclass(frozen=True)
class PackingCheck:
    """How packed rows are compared with padded ones: vectors of the same rows, both ways."""

    padded: Callable[[Sequence[np.ndarray]], np.ndarray]
    packed: Callable[[Sequence[np.ndarray], int], np.ndarray]
    """Of rows and their first position."""
    dtype: str

    def agrees(self, rows: Sequence[np.ndarray], first_position: int, reference: np.ndarray | None = None) -> bool:
        """Whether the vectors of these rows are the same both ways."""
        reference = self.padded(rows) if reference is None else reference
        return bool(row_cosines(self.packed(rows, first_position), reference).min() > LEAST_COSINE[self.dtype])


def try_packing(
    transformer: Any,
    rows: Sequence[np.ndarray],
    padding_ids: frozenset[int],
    check: PackingCheck,
    is_out_of_memory: Callable[[BaseException], bool],
) -> PackingTrial | None:
    """Compare the vectors of padded and packed `rows`, for each first position that a model may have.

    None if there was not enough memory to compare them: it may be tried again.
    """
    if transformer is None or not uses_attention(transformer):
        return PackingTrial(None)
    padding = getattr(transformer.config, "pad_token_id", None) or 0
    try:
        reference = check.padded(rows)
        for first_position in (0, padding + 1):  # RoBERTa counts positions from the padding id + 1
            with noted_windows() as windows:
                agrees = check.agrees(rows, first_position, reference)
            if agrees:
                padding_ids = _ids_that_matter(rows, padding_ids, first_position, check)
                return PackingTrial(first_position, padding_ids, longest=min(windows, default=None))
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        # out of memory: unknown; any other error: the model uses its inputs in another way and needs padding
        if is_out_of_memory(error):
            return None
    return PackingTrial(None)


def padding_ids(transformer: Any) -> frozenset[int]:
    """The ids that a transformers model takes for padding; its tokenizer may have another."""
    padding_id = getattr(getattr(transformer, "config", None), "pad_token_id", None)
    return frozenset() if padding_id is None else frozenset([padding_id])


def _ids_that_matter(
    rows: Sequence[np.ndarray], padding_ids: frozenset[int], first_position: int, check: PackingCheck
) -> frozenset[int]:
    """The padding ids that are not tokens like others inside a text.

    Many models have them in every text, as the token that ends it: rows are packed wherever that is right.
    """
    if first_position:  # RoBERTa: tokens behind a padding token have lower positions than we give them
        return padding_ids
    return frozenset(
        padding_id
        for padding_id in padding_ids
        if not check.agrees([_with_token(row, padding_id) for row in rows], first_position)
    )


def _with_token(row: np.ndarray, token: int) -> np.ndarray:
    changed: np.ndarray = row.copy()
    changed[len(row) // 2] = token
    return changed


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
