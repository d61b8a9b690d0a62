"""PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ultimate_embedder.models.attention import Groups, packed
from ultimate_embedder.models.packed import unpack
from ultimate_embedder.models.runtimes.base import Features


@dataclass(frozen=True)
class TorchRuntime:
    """Computes with the weights of the torch model, on their device."""

    dtype: str
    packs = True
    weights_move = True

    def run(self, model: Any, features: Features, groups: Groups | None) -> dict[str, Any]:
        """The features after the first module, on the device of the weights."""
        import torch

        device = next(model.parameters()).device
        inputs = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in features.items()
        }
        if groups is None:
            return dict(model[0](inputs))
        with packed(groups):
            output = model[0].auto_model(**inputs)
        hidden = output.last_hidden_state if "last_hidden_state" in output else output.logits
        tokens, mask = unpack(hidden, groups)
        return {"token_embeddings": tokens, "attention_mask": mask}
