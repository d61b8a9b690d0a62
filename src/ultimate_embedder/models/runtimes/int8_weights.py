"""Write the weights of a graph's matrix products as int8, in the pattern that OpenVINO multiplies in int8."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.models.runtimes.openvino import import_openvino

LEVELS = 255


def write_int8_graph(source: Path, target: Path) -> int:
    """Write the graph at `source` with int8 weights to `target` (.xml, with a .bin beside it).

    Gives the largest number that divides the inner size of every product, which a group of activations must fit; 0 if
    there is nothing to write as int8. Embedding tables and what has no matrix product stay as they are.
    """
    openvino = import_openvino()
    graph = openvino.Core().read_model(str(source))
    divisor = 0
    for node, values, inner_axis in _products(graph):
        node.input(1).replace_source_output(_in_int8(values, inner_axis).output(0))
        divisor = math.gcd(divisor, values.shape[inner_axis])
    graph.validate_nodes_and_infer_types()
    openvino.save_model(graph, str(target), compress_to_fp16=False)  # what is not int8 stays fp32
    return divisor


def _products(graph: Any) -> Iterator[tuple[Any, np.ndarray, int]]:
    """The products with constant weights: the node, the weights, and the axis that is summed over."""
    for node in list(graph.get_ordered_ops()):
        if node.get_type_name() != "MatMul":
            continue
        weights = node.input_value(1).get_node()
        if weights.get_type_name() == "Constant" and len(weights.get_output_shape(0)) == 2:
            values = weights.get_data().astype(np.float32)
            yield node, values, 1 if node.get_attributes()["transpose_b"] else 0


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
