"""Predict the peak memory of a forward: run the model on fake tensors and count allocations."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models.attention import known_padding
from ultimate_embedder.models.cost import ForwardCost, operation_counter
from ultimate_embedder.models.kernels import AttentionCall, is_fused, pretend_capability
from ultimate_embedder.models.layers import few_layers
from ultimate_embedder.models.loaded import ALIGNED_FROM
from ultimate_embedder.types import Capability

if TYPE_CHECKING:
    import torch

FEW_LAYERS = 2  # of a model: enough to predict the memory of all, as each layer needs the same
ROUNDING_BYTES = 512  # allocation granularity of device allocators

_predicting = OrderedLock("peak prediction", Rank.PEAK)  # one at a time: the fake tensor mode is global in torch
MakeFeatures = Callable[[int, int], dict[str, Any]]


class PeakPredictor:
    """Cached predictions for one model, made on a copy without weights, so that the model can be used meanwhile."""

    def __init__(self, model: torch.nn.Module, make_features: MakeFeatures) -> None:
        self._model = model
        self._make_features = make_features
        self._skeleton: torch.nn.Module | None = None
        self._known: dict[tuple[int, int, Capability | None, bool | None], int] = {}
        self._costs: dict[tuple[int, int, Capability | None, int], ForwardCost] = {}

    def peak_bytes(
        self, rows: int, length: int, capability: Capability | None, *, has_padding: bool | None = None
    ) -> int:
        """Peak memory of a forward of `rows` x `length` tokens, without weights, on a card of that capability.

        `has_padding` is False for rows of one length, for which models often make no mask; None if it is not known.
        """
        point = (rows, length, capability, has_padding)
        if point not in self._known:
            with _predicting:
                if point not in self._known:
                    ledger = _ledger(capability)
                    with known_padding(has_padding):
                        self._run(ledger, rows, length, capability)
                    self._known[point] = int(ledger.peak_bytes)
        return self._known[point]

    def forward_cost(self, rows: int, length: int, capability: Capability | None, layers: int) -> ForwardCost:
        """The kernels of a forward, counted with few of its `layers`: each has the same."""
        point = (rows, length, capability, layers)
        if point not in self._costs:
            few = min(FEW_LAYERS, layers)
            with _predicting:
                cost = self._count(rows, length, capability, few)
                if layers > few:
                    cost = cost.with_more(self._count(rows, length, capability, few + 1), layers - few)
            self._costs[point] = cost
        return self._costs[point]

    def _count(self, rows: int, length: int, capability: Capability | None, layers: int) -> ForwardCost:
        counter = operation_counter()
        self._run(counter, rows, length, capability, layers)
        return ForwardCost(tuple(counter.operations))

    def _run(
        self, observer: Any, rows: int, length: int, capability: Capability | None, layers: int = FEW_LAYERS
    ) -> None:
        """Let `observer` see a forward; `_predicting` must be held."""
        if self._skeleton is None:
            self._skeleton = _skeleton(self._model)
        features = partial(self._make_features, rows, length)
        _run_without_bytes(self._skeleton, features, capability, observer, layers)


def _skeleton(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of the model with weights on the meta device."""
    import torch

    weightless: dict[int, Any] = {
        id(weight): torch.nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)
        for weight in model.parameters()
    }
    weightless |= {id(buffer): torch.empty_like(buffer, device="meta") for buffer in model.buffers()}
    tokenizer = getattr(model, "tokenizer", None)
    weightless[id(tokenizer)] = tokenizer  # large, and not needed: not copied
    return copy.deepcopy(model, weightless)


def _run_without_bytes(
    model: torch.nn.Module,
    make_features: Callable[[], dict[str, Any]],
    capability: Capability | None,
    observer: Any,
    layers: int,
) -> None:
    """Let `observer` see a forward on fake tensors, which computes nothing and allocates nothing.

    The fake tensors are on the CPU, where attention is one operator; the ledger counts what the card's kernel takes.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with (
        few_layers(model, layers),
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.inference_mode(False),
        torch.no_grad(),
        pretend_capability(capability),
    ):
        weights = {
            name: torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        }
        for weight in weights.values():
            observer.ignore(weight)
        with observer:
            vectors = torch.func.functional_call(model, weights, (make_features(),))["sentence_embedding"].float()
            del vectors


def _ledger(capability: Capability | None) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    untyped_mode: Any = TorchDispatchMode
    fused_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    math_attention = torch.ops.aten._scaled_dot_product_attention_math.default

    class Ledger(untyped_mode):  # type: ignore[misc]
        """Counts every storage that an operator allocates, until it is freed."""

        def __init__(self) -> None:
            super().__init__()
            self.peak_bytes = 0
            self._held_bytes = 0
            self._live: dict[int, int] = {}

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = kwargs or {}
            result = (self._attend if function is fused_attention else function)(*args, **options)
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    self._charge(value)
            return result

        def ignore(self, tensor: torch.Tensor) -> None:
            """Do not count a tensor, as it already exists."""
            self._live[tensor.untyped_storage()._cdata] = 0

        def _attend(
            self, query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, **options: Any
        ) -> Any:
            """Attention by the kernel that the card would take; masks of short rows may be copied."""
            mask = options.get("attn_mask")
            call = AttentionCall(query, key, value, mask, causal)
            if capability is None or is_fused(capability, call):
                if mask is not None and mask.shape[-1] < ALIGNED_FROM:
                    copied = torch.empty_like(mask)
                    self._charge(copied)
                return fused_attention(query, key, value, dropout, causal, **options)
            scale = options.get("scale")
            with self:  # decomposed, so that what it allocates on the way is counted
                return math_attention.decompose(
                    query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=call.shares_keys
                )

        def _charge(self, tensor: torch.Tensor) -> None:
            storage = tensor.untyped_storage()
            if storage._cdata in self._live:
                return
            size = -(-storage.nbytes() // ROUNDING_BYTES) * ROUNDING_BYTES
            self._live[storage._cdata] = size
            self._held_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._held_bytes)
            weakref.finalize(storage, self._discharge, storage._cdata).atexit = False

        def _discharge(self, key: int) -> None:
            self._held_bytes -= self._live.pop(key)

    return Ledger()
