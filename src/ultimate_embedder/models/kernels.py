"""Which attention kernel a card takes. The fused ones never hold the scores of all pairs of tokens; math does, in fp32.

On the card torch itself is asked. For a prediction there is no card to ask: the rules are those of torch up to 2.13.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultimate_embedder.types import Capability

if TYPE_CHECKING:
    import torch

FIRST_WITH_FLASH = (8, 0)
MOST_FLASH_DIM = 256

_pretended: ContextVar[Capability | None] = ContextVar("pretended capability", default=None)


@dataclass(frozen=True)
class AttentionCall:
    """One call of attention: query, key and value of (rows, heads, tokens, dim)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    causal: bool

    @property
    def shares_keys(self) -> bool:
        """Whether several query heads use one key head (grouped-query attention)."""
        return self.query.shape[1] != self.key.shape[1]

    @property
    def is_half(self) -> bool:
        """Whether it is in fp16 or bf16."""
        return self.query.element_size() == 2


@contextlib.contextmanager
def pretend_capability(capability: Capability | None) -> Iterator[None]:
    """Decide within the block as on a card of that capability, though the tensors are not there."""
    token = _pretended.set(capability)
    try:
        yield
    finally:
        _pretended.reset(token)


def must_expand_keys(call: AttentionCall) -> bool:
    """Whether keys must be repeated for each query head, as else the math kernel of a card would run."""
    import torch

    if not call.shares_keys:
        return False
    capability = _pretended.get()
    if capability is not None:
        return not is_fused(capability, call)
    if call.query.device.type == "cpu":
        return False
    from torch.nn.attention import SDPBackend

    chosen = torch._fused_sdp_choice(
        call.query, call.key, call.value, call.mask, is_causal=call.causal and call.mask is None, enable_gqa=True
    )
    return bool(chosen == SDPBackend.MATH.value)


def is_fused(capability: Capability, call: AttentionCall) -> bool:
    """Whether a fused kernel takes the call."""
    return _flash_takes(capability, call) or _efficient_takes(capability, call)


def _flash_takes(capability: Capability, call: AttentionCall) -> bool:
    """Whether the flash kernel takes the call; it can share keys, and takes no mask."""
    query, key, value = call.query, call.key, call.value
    if capability < FIRST_WITH_FLASH or not call.is_half or call.mask is not None:
        return False
    square = not call.causal or query.shape[2] == key.shape[2]
    return square and query.shape[3] == key.shape[3] == value.shape[3] <= MOST_FLASH_DIM


def _efficient_takes(capability: Capability, call: AttentionCall) -> bool:
    """Whether the memory-efficient kernel takes the call: as many key heads as query heads, of aligned dimensions."""
    import torch

    tensor_cores = capability >= FIRST_WITH_FLASH or (capability >= (7, 0) and call.is_half)
    alignment = (8 if call.is_half else 4) if tensor_cores else 1
    if call.query.dtype == torch.bfloat16 and capability < FIRST_WITH_FLASH:
        return False
    aligned = call.query.shape[3] % alignment == 0 and call.value.shape[3] % alignment == 0
    return aligned and not call.shares_keys
