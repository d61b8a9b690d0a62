"""Products with constant weights and a bias: by torch's BLAS or by oneDNN, whichever is faster on this processor.

torch multiplies by MKL, which has its fastest code for processors of its maker only. On an AMD EPYC with AVX-512,
oneDNN with weights in a layout of its own takes 0.65 to 0.8 of the time; elsewhere they were equal. Results differ in
their last digits, so that what was found is remembered with the model, not measured by every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module, Parameter
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

Tensor = torch.Tensor
BLAS, ONEDNN = "blas", "onednn"
TOKENS, WIDTH, INNER = 256, 384, 1536  # of the trial: a small batch in a small model
ROUNDS = 7
WORTH = 0.92  # of the time: less of a gain may be chance, and oneDNN prepares itself for every new number of tokens


class Product(Module):
    """A product by torch's BLAS."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = constant(weight)
        self.bias = constant(bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """The product of rows, and the bias."""
        return torch.mm(inputs, self.weight.t()).add_(self.bias)  # a bias in the product: 5 % more

    def gelu(self, inputs: Tensor) -> Tensor:
        """GELU of that."""
        return F.gelu(self(inputs))

    def added_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """That, added to other rows, which may be changed."""
        return residual.addmm_(inputs, self.weight.t()).add_(self.bias)

    @property
    def plain_weight(self) -> Tensor:
        """The weights, as torch has them elsewhere."""
        return self.weight


class PackedProduct(Product):
    """A product by oneDNN, with its weights in the layout that the processor reads fastest."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight, bias)
        self.weight = Parameter(torch.ops.mkldnn._reorder_linear_weight(self.weight.data, TOKENS), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """The product of rows, and the bias."""
        return _linear(inputs, self.weight, self.bias, "none", [], "")

    def gelu(self, inputs: Tensor) -> Tensor:
        """GELU of that, computed with the product."""
        return _linear(inputs, self.weight, self.bias, "gelu", [], "none")  # by the error function, as BERT has it

    def added_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """That, added to other rows."""
        return _linear.binary(inputs, residual, self.weight, self.bias, "add")

    @property
    def plain_weight(self) -> Tensor:
        """The weights, as torch has them elsewhere."""
        return self.weight.to_dense()

    def __deepcopy__(self, memo: object) -> PackedProduct:
        """The same: torch cannot copy weights in this layout, and nobody changes them."""
        return self


class Bf16Product(Module):
    """A product in bf16, summed up in fp32 by the processor; gives fp32."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.weight = constant(product.plain_weight.bfloat16())
        self.bias = constant(product.bias.bfloat16())

    def forward(self, inputs: Tensor) -> Tensor:
        """The product of rows, and the bias."""
        return self._rounded(inputs).float()

    def gelu(self, inputs: Tensor) -> Tensor:
        """GELU of that, in bf16, as the next product takes it."""
        return F.gelu(self._rounded(inputs))

    def added_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """That, added to other rows, which may be changed."""
        return residual.add_(self._rounded(inputs))

    def _rounded(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs.bfloat16(), self.weight, self.bias)


PRODUCTS: dict[str, type[Product]] = {BLAS: Product, ONEDNN: PackedProduct}
_linear: Any = torch.ops.mkldnn._linear_pointwise


def faster_products() -> str:
    """Which kind of product is faster on this processor, with the threads that there are."""
    generator = torch.Generator().manual_seed(0)
    weight, bias, inputs = (
        torch.randn(shape, generator=generator) for shape in ((INNER, WIDTH), (INNER,), (TOKENS, WIDTH))
    )
    seconds = dict.fromkeys(PRODUCTS, float("inf"))
    try:
        with torch.inference_mode():
            products = {name: kind(weight, bias) for name, kind in PRODUCTS.items()}
            for _ in range(ROUNDS):  # in turn, so that other programs slow down both
                for name, product in products.items():
                    seconds[name] = min(seconds[name], _seconds(product.gelu, inputs))
    except (RuntimeError, AttributeError):  # a build of torch, or a processor, without oneDNN
        return BLAS
    return ONEDNN if seconds[ONEDNN] < WORTH * seconds[BLAS] else BLAS


def _seconds(compute: Callable[[Tensor], Tensor], inputs: Tensor) -> float:
    started = time.perf_counter()
    compute(inputs)
    return time.perf_counter() - started


def constant(tensor: Tensor) -> Parameter:
    """A weight that is not trained."""
    return Parameter(tensor.contiguous(), requires_grad=False)
