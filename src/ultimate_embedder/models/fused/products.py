"""Products with constant weights and a bias: by torch's BLAS, by oneDNN or by our own code, and in bf16 or int8.

torch multiplies by MKL, which has its fastest code for processors of its maker only. On an AMD EPYC with AVX-512,
oneDNN with weights in a layout of its own takes 0.65 to 0.8 of the time; with AVX2 they are equal, and our own code is
faster (`native.py`). Results differ in their last digits: `fastest.py` finds out once, and it is remembered.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import Module, Parameter
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from ultimate_embedder.models.fused.native import Native, native, pack, pack_int8, unpack
from ultimate_embedder.models.fused.settings import BLAS, NATIVE, ONEDNN, NotFusibleError

Tensor = torch.Tensor
BLOCK_ROWS = 264  # whole tiles of our own kernels
FEW_SIZES = 32  # rows of a block are a multiple, where each number of rows costs memory


class Product(Module):
    """A product by torch's BLAS."""

    step_rows = 1
    """Blocks of rows must be multiples of it."""

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

    step_rows = FEW_SIZES

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(weight, bias)
        reordered = torch.ops.mkldnn._reorder_linear_weight(self.weight.data, _block_rows(FEW_SIZES))
        self.weight = Parameter(reordered, requires_grad=False)

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


class NativeProduct(Product):
    """A product by our own code, with its weights packed."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """Raises `NotFusibleError` where there is no such code."""
        super().__init__(weight, bias)
        kernels = native()
        if kernels is None:
            raise NotFusibleError("there is no compiler for its products")
        self._kernels = kernels
        self.weight = constant(pack(self.weight.data, kernels.tile_outputs))

    @staticmethod
    def fits(outputs: int) -> bool:
        """Whether it can be had for that many outputs."""
        kernels = native()
        return kernels is not None and outputs % kernels.panel_outputs == 0

    def forward(self, inputs: Tensor) -> Tensor:
        """The product of rows, and the bias."""
        return self._kernels.multiply(inputs, self.weight, self.bias)

    def in_panels(self, inputs: Tensor) -> Tensor:
        """That in panels, as our own attention reads it fastest."""
        return self._kernels.multiply(inputs, self.weight, self.bias, in_panels=True)

    def gelu(self, inputs: Tensor) -> Tensor:
        """GELU of that, computed with the product."""
        return self._kernels.multiply(inputs, self.weight, self.bias, gelu=True)

    def added_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """That, added to other rows, which may be changed."""
        return self._kernels.multiply(inputs, self.weight, self.bias, residual)

    @property
    def plain_weight(self) -> Tensor:
        """The weights, as torch has them elsewhere."""
        return unpack(self.weight, len(self.bias), self._kernels.tile_outputs)


class Bf16Product(Module):
    """A product in bf16, summed up in fp32 by the processor; gives fp32."""

    step_rows = FEW_SIZES

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


class Int8Product(Module):
    """A product in int8 by our own code; takes and gives fp32. What a row gives does not depend on other rows."""

    step_rows = 1

    def __init__(self, product: Product, group: int, kernels: Native) -> None:
        """`group` inputs share a scale; it divides their number, as the kernels' panel that of the outputs."""
        super().__init__()
        self.weights = pack_int8(product.plain_weight, group, kernels.tile_outputs)
        self.bias = constant(product.bias)
        self._kernels = kernels

    def forward(self, inputs: Tensor) -> Tensor:
        """The product of rows, and the bias."""
        return self._kernels.multiply_int8(inputs, self.weights, self.bias)

    def in_panels(self, inputs: Tensor) -> Tensor:
        """That in panels, as our own attention reads it fastest."""
        return self._kernels.multiply_int8(inputs, self.weights, self.bias, in_panels=True)

    def gelu(self, inputs: Tensor) -> Tensor:
        """GELU of that, computed with the product."""
        return self._kernels.multiply_int8(inputs, self.weights, self.bias, gelu=True)

    def added_to(self, residual: Tensor, inputs: Tensor) -> Tensor:
        """That, added to other rows, which may be changed."""
        return self._kernels.multiply_int8(inputs, self.weights, self.bias, residual)


def in_blocks(compute: Callable[..., Tensor], step_rows: int, target: Tensor, *inputs: Tensor) -> Tensor:
    """Fill `target` with what is computed row by row, in blocks, which stay in the caches, of multiples of `step_rows`.

    oneDNN makes code for every number of rows that it meets, and keeps about a megabyte for each.
    """
    rows, most = len(target), _block_rows(step_rows)
    for start in range(0, rows, most):
        block = [each[start : start + most] for each in inputs]
        missing = -len(block[0]) % step_rows
        if missing:
            block = [F.pad(each, (0, 0, 0, missing)) for each in block]
        computed = compute(*block)[: rows - start]
        part = target[start : start + most]
        if computed.data_ptr() != part.data_ptr():  # else it was computed in place
            part.copy_(computed)
    return target


def _block_rows(step_rows: int) -> int:
    return BLOCK_ROWS - BLOCK_ROWS % step_rows


PRODUCTS: dict[str, type[Product]] = {BLAS: Product, ONEDNN: PackedProduct, NATIVE: NativeProduct}


def make_product(kind: str, weight: Tensor, bias: Tensor) -> Product:
    """A product of this kind, or by BLAS where that kind cannot have its sizes."""
    if kind == NATIVE and not NativeProduct.fits(len(bias)):
        kind = BLAS
    return PRODUCTS[kind](weight, bias)


def constant(tensor: Tensor) -> Parameter:
    """A weight that is not trained."""
    return Parameter(tensor.contiguous(), requires_grad=False)
