"""Products with constant weights and a bias: by torch's BLAS or by oneDNN, whichever is faster on this processor.

torch multiplies by MKL, which has its fastest code for processors of its maker only. On an AMD EPYC with AVX-512,
oneDNN with weights in a layout of its own takes 0.65 to 0.8 of the time; elsewhere they were equal. Results differ in
their last digits, so that what was found is remembered with the model, not measured by every run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import Module, Parameter
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ultimate_embedder.models.fused.settings import BLAS, ONEDNN

Tensor = torch.Tensor
TOKENS, WIDTH, INNER = 256, 384, 1536  # of the trial: a small batch in a small model
BLOCK_ROWS, STEP_ROWS = 256, 32
ROUNDS = 7
WORTH = 0.92  # of the time: less of a gain may be chance


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
        return self._pointwise(inputs, "none", [], "")

    def gelu(self, inputs: Tensor) -> Tensor:
        """GELU of that, computed with the product."""
        return self._pointwise(inputs, "gelu", [], "none")  # by the error function, as BERT has it

    def added_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """That, added to other rows."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(inputs, residual, self.weight, self.bias, "add")
        return result

    def _pointwise(self, inputs: Tensor, *function: object) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, *function)
        return result

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


def in_blocks(compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """What is computed row by row, in blocks of few sizes.

    oneDNN makes code for every number of rows that it meets, and keeps about a megabyte for each. Smaller blocks are
    no slower, as they stay in the caches.
    """
    rows = len(inputs[0])
    computed = []
    for start in range(0, rows, BLOCK_ROWS):
        block = [each[start : start + BLOCK_ROWS] for each in inputs]
        missing = -len(block[0]) % STEP_ROWS
        if missing:
            block = [F.pad(each, (0, 0, 0, missing)) for each in block]
        computed.append(compute(*block)[: rows - start])
    return computed[0] if len(computed) == 1 else torch.cat(computed)


PRODUCTS: dict[str, type[Product]] = {BLAS: Product, ONEDNN: PackedProduct}


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
