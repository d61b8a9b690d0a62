"""Know the peak of a forward before it is run: the model's own code on tensors without bytes, under a ledger."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ultimate_embedder.models.layers import few_layers

if TYPE_CHECKING:
    import torch

    from ultimate_embedder.models.encoder import Encoder

ROUNDING_BYTES = 512  # how device allocators round


def predict_peak_bytes(encoder: Encoder, rows: int, length: int) -> int:
    """Most bytes that a forward of `rows` x `length` tokens has allocated at once, weights not counted.

    Nothing is computed and no memory is taken, so it can be asked for any size on any machine. The tensors
    pretend to be on the CPU: there attention is fused, as it is on a card, while `meta` takes the unfused path.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    ledger = _ledger()
    with (
        few_layers(encoder.model),
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        weights = {
            name: torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
            for name, tensor in [*encoder.model.named_parameters(), *encoder.model.named_buffers()]
        }
        for weight in weights.values():
            ledger.ignore(weight)
        with ledger:
            features = encoder.pretend_features(rows, length)
            vectors = torch.func.functional_call(encoder.model, weights, (features,))["sentence_embedding"].float()
            del vectors
    return int(ledger.peak_bytes)


def _ledger() -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    untyped_mode: Any = TorchDispatchMode

    class Ledger(untyped_mode):  # type: ignore[misc]
        """Charges every storage that an operator makes, until it dies."""

        def __init__(self) -> None:
            super().__init__()
            self.peak_bytes = 0
            self._held_bytes = 0
            self._live: dict[int, int] = {}

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    self._charge(value)
            return result

        def ignore(self, tensor: torch.Tensor) -> None:
            """Let a tensor cost nothing: it is there already."""
            self._live[tensor.untyped_storage()._cdata] = 0

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
