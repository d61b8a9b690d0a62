"""bf16 on a CPU: only the products of the transformer. Sums, norms, softmax and pooling stay in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultimate_embedder.models.encoder import Encoder
from ultimate_embedder.models.runtimes import TorchRuntime

if TYPE_CHECKING:
    import torch

BF16 = "bfloat16"


def products_in_bf16(encoder: Encoder) -> Encoder:
    """An encoder in fp32, with the products of its transformer changed to bf16."""
    transformer = encoder.transformer if encoder.transformer is not None else encoder.model[0]
    _replace_layers(transformer)
    return encoder.with_runtime(TorchRuntime(BF16))


def _replace_layers(parent: torch.nn.Module) -> None:
    import torch

    from ultimate_embedder.models.fused.products import Bf16Product, Product

    for name, module in parent.named_children():
        if type(module) is torch.nn.Linear:
            setattr(parent, name, _in_bf16(module))
        elif isinstance(module, Product):  # of a fused model
            setattr(parent, name, Bf16Product(module))
        else:
            _replace_layers(module)


def _in_bf16(layer: torch.nn.Linear) -> torch.nn.Module:
    import torch

    from ultimate_embedder.models.fused.products import FEW_SIZES, in_blocks

    class Bf16Linear(torch.nn.Linear):
        """Weights and inputs in bf16, added up in fp32 by the processor; takes and gives fp32."""

        def forward(self, inputs: Any) -> Any:
            rows = inputs.reshape(-1, self.in_features)
            products = in_blocks(self._product, FEW_SIZES, rows.new_empty(len(rows), self.out_features), rows)
            return products.view(*inputs.shape[:-1], self.out_features)

        def _product(self, rows: Any) -> Any:
            return torch.nn.functional.linear(rows.bfloat16(), self.weight, self.bias).float()

    changed = Bf16Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
    changed.weight = torch.nn.Parameter(layer.weight.detach().bfloat16(), requires_grad=False)
    if layer.bias is not None:
        changed.bias = torch.nn.Parameter(layer.bias.detach().bfloat16(), requires_grad=False)
    return changed.eval()
