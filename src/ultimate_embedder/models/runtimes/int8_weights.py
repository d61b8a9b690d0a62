"""Write the weights of a graph's matrix products as int8, in the pattern that OpenVINO multiplies in int8."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.models.runtimes.balance import channel_factors, rounded
from ultimate_embedder.models.runtimes.openvino import import_openvino

LEVELS = 255
GROUP = 128  # of activations, for which the loss is estimated; what is good there is good in smaller ones
WORTH = 0.8  # of the loss without factors: a division costs time, if little

Example = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Product:
    """A matrix product with constant weights."""

    node: Any
    constant: Any
    turned: bool
    """Whether the graph has the weights as input x output."""

    @property
    def weights(self) -> np.ndarray:
        """The weights (output x input); not kept, as those of all products would be a second copy of the model."""
        values = self.constant.get_data().astype(np.float32)
        return np.asarray(values.T if self.turned else values)

    @property
    def width(self) -> int:
        """The inner size: how many numbers are summed."""
        return int(self.constant.get_output_shape(0)[0 if self.turned else 1])

    @property
    def given(self) -> tuple[str, int]:
        """Which output of which node is its input."""
        source = self.node.input_value(0)
        return source.get_node().get_friendly_name(), source.get_index()


def write_int8_graph(source: Path, target: Path, examples: Sequence[Example]) -> int:
    """Write the graph at `source` with int8 weights to `target` (.xml, with a .bin beside it).

    `examples` are inputs of the graph, by which the sizes of channels are measured. Gives the largest number that
    divides the inner size of every product, which a group of activations must fit; 0 if there is nothing to write as
    int8. Embedding tables and what has no matrix product stay as they are.
    """
    openvino = import_openvino()
    graph = openvino.Core().read_model(str(source))
    shared: dict[tuple[str, int], list[_Product]] = {}
    for product in _products(graph):
        shared.setdefault(product.given, []).append(product)
    factors = _useful_factors(source, shared, examples) if shared else {}
    divisor = 0
    for given, products in shared.items():
        _write_products(products, factors.get(given))
        divisor = math.gcd(divisor, products[0].width)
    graph.validate_nodes_and_infer_types()
    openvino.save_model(graph, str(target), compress_to_fp16=False)  # what is not int8 stays fp32
    return divisor


def _products(graph: Any) -> Iterator[_Product]:
    for node in list(graph.get_ordered_ops()):
        if node.get_type_name() != "MatMul" or node.get_attributes()["transpose_a"]:
            continue
        weights = node.input_value(1).get_node()
        if weights.get_type_name() == "Constant" and len(weights.get_output_shape(0)) == 2:
            yield _Product(node, weights, not node.get_attributes()["transpose_b"])


def _useful_factors(
    source: Path, shared: Mapping[tuple[str, int], Sequence[_Product]], examples: Sequence[Example]
) -> dict[tuple[str, int], np.ndarray]:
    """The factors of the inputs where they pay."""
    found = {}
    for given, values in _inputs_of_products(source, examples).items():
        weights = [product.weights for product in shared[given]]
        factors = channel_factors(np.square(values, dtype=np.float64).mean(0), weights)
        if product_loss(values, weights, factors) < WORTH * product_loss(values, weights):
            found[given] = factors
    return found


def product_loss(values: np.ndarray, weights: Sequence[np.ndarray], factors: np.ndarray | None = None) -> float:
    """The mean square by which products change in int8, each in its own size."""
    width = values.shape[1]
    divided = values if factors is None else values / factors
    inputs = rounded(divided, GROUP if width % GROUP == 0 else width)
    lost = 0.0
    for each in weights:
        stored, zero, scale = quantize(each if factors is None else each * factors, 1)
        exact = values @ each.T
        change = inputs @ ((stored.astype(np.float32) - zero) * scale).T - exact
        lost += float(np.square(change).mean() / max(np.square(exact).mean(), 1e-30))
    return lost


def _inputs_of_products(source: Path, examples: Sequence[Example]) -> dict[tuple[str, int], np.ndarray]:
    """What the products are given when the examples are computed in fp32: rows of channels."""
    openvino = import_openvino()
    core = openvino.Core()
    graph = core.read_model(str(source))
    wanted = {product.given: product.node.input_value(0) for product in _products(graph)}
    from openvino import opset13 as ops

    results = [ops.result(output) for output in wanted.values()]
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(openvino.Model(results, graph.get_parameters()), "CPU", settings)
    rows: list[list[np.ndarray]] = [[] for _ in wanted]
    for example in examples:
        computed = compiled.create_infer_request().infer(dict(example))
        for number, each in enumerate(rows):
            values = np.array(computed[compiled.outputs[number]])
            each.append(values.reshape(-1, values.shape[-1]))
    return {given: np.concatenate(each) for given, each in zip(wanted, rows, strict=True)}


def _write_products(products: Sequence[_Product], factors: np.ndarray | None) -> None:
    """Give products that share an input their weights in int8, and the divided input if there are factors."""
    from openvino import opset13 as ops

    given = products[0].node.input_value(0)
    if factors is not None:
        given = ops.multiply(given, ops.constant(1 / factors)).output(0)
    for product in products:
        weights = product.weights if factors is None else product.weights * factors
        if factors is not None:
            product.node.input(0).replace_source_output(given)
        values, inner_axis = (weights.T, 0) if product.turned else (weights, 1)
        product.node.input(1).replace_source_output(_in_int8(np.ascontiguousarray(values), inner_axis).output(0))


def quantize(values: np.ndarray, inner_axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights as uint8, and the zero point and the scale of each output channel: (weights - zero) * scale."""
    low = np.minimum(values.min(inner_axis, keepdims=True), 0)  # so that the zero point is one of the levels
    high = np.maximum(values.max(inner_axis, keepdims=True), 0)
    scale = np.where(high > low, (high - low) / LEVELS, 1).astype(np.float32)  # a channel of zeros has no scale
    zero = np.round(-low / scale)
    return np.clip(np.round(values / scale + zero), 0, LEVELS).astype(np.uint8), zero.astype(np.uint8), scale


def _in_int8(values: np.ndarray, inner_axis: int) -> Any:
    from openvino import opset13 as ops

    stored, zero, scale = quantize(values, inner_axis)
    shifted = ops.subtract(ops.convert(ops.constant(stored), np.float32), ops.convert(ops.constant(zero), np.float32))
    return ops.multiply(shifted, ops.constant(scale))
