"""Our attention in transformers' registry: the same kernels as `sdpa`, called so that they need little memory.

It is set on every model that uses the registry. Rows may be packed (`packed`); keys are repeated per query head where
the card has no kernel that shares them; and queries may be run in pieces (`attention_in_pieces`), so that nothing, not
even the mask, is quadratic in the length of a text.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ultimate_embedder.models.kernels import AttentionCall, must_expand_keys
from ultimate_embedder.models.layers import NotApplicableError

if TYPE_CHECKING:
    import torch

NAME = "ultimate_embedder"
SCORES_PER_PIECE = 1 << 22  # 16 MiB in fp32, where the kernel holds them
SMALLEST_PIECE_TOKENS = 16
Groups = tuple[tuple[int, int], ...]  # (rows, length) in the order of the tokens

_groups: ContextVar[Groups | None] = ContextVar("groups", default=None)
_in_pieces: ContextVar[bool] = ContextVar("in pieces", default=False)
_windows: ContextVar[list[int] | None] = ContextVar("windows", default=None)
_has_padding: ContextVar[bool | None] = ContextVar("has padding", default=None)  # unknown


def use_attention(model: torch.nn.Module) -> None:
    """Set our attention on all transformers models in `model` that run `sdpa` through the registry."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == "sdpa" and hasattr(module, "set_attn_implementation"):
            _register()
            untyped: Any = module
            if untyped._can_set_attn_implementation():
                untyped.set_attn_implementation(NAME)


def uses_attention(model: torch.nn.Module) -> bool:
    """Whether our attention is set on a model."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return any(getattr(config, "_attn_implementation", None) == NAME for config in configs)


@contextlib.contextmanager
def eager_attention(model: torch.nn.Module) -> Iterator[None]:
    """Let a model compute attention by plain products within the block, where ours is set on it."""
    ours: list[Any] = [
        module
        for module in model.modules()
        if getattr(getattr(module, "config", None), "_attn_implementation", None) == NAME
        and hasattr(module, "set_attn_implementation")
    ]
    try:
        for module in ours:
            module.set_attn_implementation("eager")
        yield
    finally:
        for module in ours:
            module.set_attn_implementation(NAME)


@contextlib.contextmanager
def packed(groups: Groups) -> Iterator[None]:
    """Restrict attention to the rows of `groups` within the block."""
    token = _groups.set(groups)
    try:
        yield
    finally:
        _groups.reset(token)


def current_groups() -> Groups | None:
    """The groups of the block that is being run; None if rows are padded."""
    return _groups.get()


@contextlib.contextmanager
def noted_windows() -> Iterator[list[int]]:
    """The windows of the layers that run within the block and attend only to tokens nearby: how far, in tokens."""
    windows: list[int] = []
    token = _windows.set(windows)
    try:
        yield windows
    finally:
        _windows.reset(token)


@contextlib.contextmanager
def known_padding(has_padding: bool | None) -> Iterator[None]:
    """Say what the host knows of a batch, so that nobody looks at its mask, and waits for the device to do so."""
    token = _has_padding.set(has_padding)
    try:
        yield
    finally:
        _has_padding.reset(token)


@contextlib.contextmanager
def attention_in_pieces(model: torch.nn.Module) -> Iterator[None]:
    """Run attention for a few queries at a time within the block, each piece with its part of the mask.

    The result is the same, as each query attends independently.
    """
    if not uses_attention(model):
        raise NotApplicableError("the model does not use transformers' attention registry")
    token = _in_pieces.set(True)
    try:
        yield
    finally:
        _in_pieces.reset(token)


class _NeedsWholeMaskError(NotApplicableError):
    def __init__(self) -> None:
        super().__init__("the model's own code needs the whole attention mask")


class PiecedMask:
    """A mask that is made for a range of queries when it is needed; a model can only pass it on."""

    def __init__(self, make: Callable[..., Any], options: dict[str, Any]) -> None:
        self._make = make
        self._options = options

    def rows(self, start: int, stop: int) -> torch.Tensor | None:
        """The mask of the queries `start` to `stop`; None if they may attend to everything."""
        options = {**self._options, "allow_is_causal_skip": False}
        if "cache_position" in options:  # the positions of the queries, in older versions of transformers
            options["cache_position"] = options["cache_position"][start:stop]
        else:
            options |= {"q_length": stop - start, "q_offset": options.get("q_offset", 0) + start}
        mask: torch.Tensor | None = self._make(**options)
        return mask

    def __getattr__(self, name: str) -> Any:
        raise _NeedsWholeMaskError

    def __getitem__(self, key: Any) -> Any:
        raise _NeedsWholeMaskError

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, arguments: Any = (), options: Any = None) -> Any:
        raise _NeedsWholeMaskError


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    plain_attention, plain_mask = ALL_ATTENTION_FUNCTIONS["sdpa"], ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        groups = _groups.get()
        attend = _Attention(plain_attention, module, options)
        if groups is not None:
            return _attend_groups(attend, query, key, value, groups), None
        return attend(query, key, value, attention_mask), None

    def mask(*arguments: Any, **options: Any) -> Any:
        if _groups.get() is not None:
            _note_window(options)
            return None
        options |= _told_of_padding(options)
        if _in_pieces.get() and not arguments:  # all by name, as transformers itself calls it
            return PiecedMask(plain_mask, options)
        return plain_mask(*arguments, **options)

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def _note_window(options: dict[str, Any]) -> None:
    windows, window = _windows.get(), options.get("local_size")
    if windows is not None and window is not None:
        windows.append(window)


def _told_of_padding(options: dict[str, Any]) -> dict[str, Any]:
    """Options for a mask function that would otherwise read the padding mask to see whether it can be left out."""
    has_padding = _has_padding.get()
    if has_padding is None or options.get("attention_mask") is None:
        return {}
    if not has_padding:
        return {"attention_mask": None}
    return {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}


class _Attention:
    """Attention of one layer: calls `plain`, the `sdpa` of transformers."""

    def __init__(self, plain: Callable[..., Any], module: Any, options: dict[str, Any]) -> None:
        causal = options.get("is_causal")
        self.causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
        self._plain = plain
        self._module = module
        self._options = options

    def __call__(self, query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
        """Attended values of (rows, tokens, heads, dim)."""
        if _in_pieces.get():
            return self._in_pieces(query, _expanded(key, query), _expanded(value, query), mask)
        if must_expand_keys(AttentionCall(query, key, value, mask, self.causal)):
            key, value = _expanded(key, query), _expanded(value, query)
            return self._equal_heads(query, key, value, mask, self._options)
        attended: torch.Tensor = self._plain(self._module, query, key, value, mask, **self._options)[0]
        return attended

    def _equal_heads(self, query: Any, key: Any, value: Any, mask: Any, options: dict[str, Any]) -> torch.Tensor:
        # `sdpa` reads the head counts from the module, and must not repeat keys again
        module = types.SimpleNamespace(is_causal=self.causal)
        attended: torch.Tensor = self._plain(module, query, key, value, mask, **options)[0]
        return attended

    def _in_pieces(self, query: Any, key: Any, value: Any, mask: Any) -> torch.Tensor:
        rows, heads, tokens, _ = query.shape
        step = max(SMALLEST_PIECE_TOKENS, SCORES_PER_PIECE // (rows * heads * key.shape[2]))
        attended: torch.Tensor = query.new_empty(rows, tokens, heads, value.shape[3])
        for start in range(0, tokens, step):
            stop = min(start + step, tokens)
            options = {**self._options, "is_causal": False}
            if options.get("position_bias") is not None:
                options["position_bias"] = options["position_bias"][:, :, start:stop]
            piece = self._mask_of(mask, query, key, start, stop)
            attended[:, start:stop] = self._equal_heads(query[:, :, start:stop], key, value, piece, options)
        return attended

    def _mask_of(self, mask: Any, query: Any, key: Any, start: int, stop: int) -> Any:
        """The mask of some queries."""
        import torch

        if mask is not None and not isinstance(mask, PiecedMask):
            return mask[:, :, start:stop] if mask.shape[2] == query.shape[2] else mask
        piece = None if mask is None else mask.rows(start, stop)
        if piece is None and self.causal:
            positions = torch.arange(key.shape[2], device=query.device)
            piece = positions <= positions[start:stop, None]
        return piece


def _attend_groups(attend: _Attention, query: Any, key: Any, value: Any, groups: Groups) -> torch.Tensor:
    import torch

    _, heads, tokens, _ = query.shape
    attended = torch.empty(1, tokens, heads, value.shape[3], dtype=query.dtype, device=query.device)
    start = 0
    for rows, length in groups:
        stop = start + rows * length

        def part(tensor: Any, start: int = start, stop: int = stop, rows: int = rows, length: int = length) -> Any:
            return tensor[0, :, start:stop].unflatten(1, (rows, length)).transpose(0, 1)

        attended[0, start:stop] = attend(part(query), part(key), part(value), None).flatten(0, 1)
        start = stop
    return attended


def _expanded(tensor: Any, query: Any) -> Any:
    """Keys or values, repeated for each query head that shares them."""
    rows, heads, tokens, dim = tensor.shape
    shared_by = query.shape[1] // heads
    if shared_by == 1:
        return tensor
    return tensor[:, :, None].expand(rows, heads, shared_by, tokens, dim).reshape(rows, -1, tokens, dim)
