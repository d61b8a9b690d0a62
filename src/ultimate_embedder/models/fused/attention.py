"""Attention of a fused model: by torch's kernel, or by our own for texts that are not padded."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ultimate_embedder.models.attention import Groups
from ultimate_embedder.models.fused.native import Native

Tensor = torch.Tensor


def attend(
    joined: Tensor,
    groups: Groups,
    heads: int,
    mask: Tensor | None,
    kernels: Native | None = None,
    *,
    first_only: bool = False,
) -> Tensor:
    """Attended values of (tokens, dimensions), or of each row's first token: a call for each group of one length.

    `joined` has queries, keys and values side by side, or in panels where it was made by our own product. Rows of
    similar length in one call, padded and masked, were slower: the copies cost more than the calls. The CPU's kernel
    never holds the scores of all pairs, so that there is nothing to do in pieces.
    """
    joined = joined.contiguous()
    in_panels = joined.dim() == 3
    tokens = joined.shape[1] if in_panels else joined.shape[0]
    size = joined.numel() // tokens // 3
    attended = joined.new_empty(sum(rows for rows, _ in groups) if first_only else tokens, size)
    token = place = 0
    for rows, length in groups:
        asked = 1 if first_only else length
        shape, target = (rows, length, heads), attended[place : place + rows * asked]
        if kernels is not None and mask is None and kernels.can_attend(length, size // heads):
            kernels.attend(joined, token, shape, asked, target)
        else:
            span = slice(token, token + rows * length)
            part = joined[:, span].transpose(0, 1).flatten(1) if in_panels else joined[span]
            _attend_by_torch(part, shape, asked, target, mask)
        token, place = token + rows * length, place + rows * asked
    return attended


def _attend_by_torch(
    joined: Tensor, shape: tuple[int, int, int], asked: int, attended: Tensor, mask: Tensor | None
) -> None:
    rows, length, heads = shape
    query, key, value = joined.view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    values = F.scaled_dot_product_attention(query[:, :, :asked], key, value, attn_mask=mask)
    attended.view(rows, asked, heads, -1).copy_(values.transpose(1, 2))
