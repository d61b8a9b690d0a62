"""What int8 with VNNI loses, on a CPU without it: the graph of `--precision int8` with rounded activations.

    python -m benchmarks.int8_emulated --data DIR [DIR ...] [--model NAME ...] [--groups 128 64 32]

The kernels of OpenVINO for VNNI round the inputs of each product to int8 in groups of a row: the scale of a group is its
largest number / 127, the nearest integer is taken, half to even; sums of a group are exact, and scales are multiplied in
fp32. Here the same rounding is put into the graph as operations, and the products run in fp32: vectors are those of the
kernels but for the last digits of fp32. Times mean nothing. DIR has a judged collection in BEIR's form.

Prints a table and writes build/bench/int8-emulated.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import BUILD
from benchmarks.retrieval import Judged, compare, encode_judged, read_judged
from ultimate_embedder.models import Encoder, load_on_backend, resolve_model
from ultimate_embedder.models.exported import GraphWish, checked_graph
from ultimate_embedder.models.int8 import GROUPS, group_size, in_groups
from ultimate_embedder.models.runtimes import OpenVinoRuntime
from ultimate_embedder.models.runtimes.openvino import import_openvino
from ultimate_embedder.types import ResolvedModel

LARGEST = 127.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="judged collections in BEIR's form")
    parser.add_argument("--model", nargs="+", default=["all-minilm-l6-v2"], help="names or folders (default: MiniLM)")
    parser.add_argument("--groups", type=int, nargs="+", default=list(GROUPS), help="sizes; 0 is fp32 activations")
    parser.add_argument("--max-tokens", type=int, default=256)
    options = parser.parse_args()
    collections = [read_judged(folder) for folder in options.data]
    rows: list[dict[str, Any]] = []
    for name in options.model:
        for row in measure(resolve_model(name), collections, options.groups, options.max_tokens):
            rows.append(row)
            print(in_words(row), flush=True)
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "int8-emulated.json").write_text(json.dumps(rows, indent=2))


def measure(
    model: ResolvedModel, collections: list[Judged], groups: list[int], max_tokens: int
) -> Iterator[dict[str, Any]]:
    """One row per collection and size of groups."""
    fp32 = load_on_backend(model, "openvino", max_tokens)
    exact = [encode_judged(fp32, judged) for judged in collections]
    for group in groups:
        encoder = emulated(model, fp32, group)
        for judged, reference in zip(collections, exact, strict=True):
            found = compare(encode_judged(encoder, judged), reference, judged)
            yield {"model": model.name, "data": judged.name, "group": group, **found}


def in_words(row: dict[str, Any]) -> str:
    """A row of the table."""
    return (
        f"{row['model']:30} {row['data']:10} groups of {row['group']:>3}: {row['texts']} texts, mean "
        f"{row['mean_cosine']:.5f}, worst {row['worst_cosine']:.5f}; nDCG@10 of {row['queries']} queries "
        f"{row['ndcg']:.4f}, fp32 {row['ndcg_fp32']:.4f} ({row['ndcg'] - row['ndcg_fp32']:+.4f}, standard error "
        f"{row['standard_error']:.4f}), queries in int8 too {row['ndcg_queries_alike']:.4f}"
    )


def emulated(model: ResolvedModel, encoder: Encoder, size: int) -> Encoder:
    """The encoder with the int8 graph, and with its activations rounded in groups of at most this size."""
    graph = checked_graph(GraphWish(model, "openvino", int8=True))
    group = group_size(in_groups(size), graph.divisor) if size else 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "emulated.xml"
        write_emulated(graph.path, path, group)
        return encoder.with_runtime(OpenVinoRuntime(path, "int8"))


def write_emulated(source: Path, target: Path, group: int) -> None:
    """Write a graph with int8 weights so that the inputs of its int8 products are rounded in groups."""
    openvino = import_openvino()
    graph = openvino.Core().read_model(str(source))
    rounded: dict[tuple[str, int], Any] = {}
    for node in int8_products(graph) if group else ():
        given = node.input_value(0)
        key = given.get_node().get_friendly_name(), given.get_index()
        if key not in rounded:  # several products have the same input
            rounded[key] = _rounded(given, _inner_size(node), group)
        node.input(0).replace_source_output(rounded[key].output(0))
    graph.validate_nodes_and_infer_types()
    openvino.save_model(graph, str(target), compress_to_fp16=False)


def int8_products(graph: Any) -> list[Any]:
    """The products whose weights are stored as int8."""
    return [node for node in graph.get_ordered_ops() if node.get_type_name() == "MatMul" and _has_int8_weights(node)]


def _has_int8_weights(product: Any) -> bool:
    node = product.input_value(1).get_node()
    while node.get_type_name() in ("Multiply", "Subtract", "Convert"):
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant" and node.get_element_type().get_type_name() in ("u8", "i8")


def _inner_size(product: Any) -> int:
    """How many numbers a product sums; its input may not say so."""
    return int(product.input_value(1).get_shape()[1 if product.get_attributes()["transpose_b"] else 0])


def _rounded(given: Any, width: int, group: int) -> Any:
    from openvino import opset13 as ops

    in_rows = ops.reshape(given, np.array([0, 0, width // group, group]), special_zero=True)
    largest = ops.reduce_max(ops.abs(in_rows), np.array([3]), keep_dims=True)
    step = ops.divide(largest, np.float32(LARGEST))
    per_step = ops.divide(np.float32(1), ops.maximum(step, np.float32(1e-30)))  # a group of zeros has no scale
    whole = ops.clamp(ops.round(ops.multiply(in_rows, per_step), "half_to_even"), -LARGEST - 1, LARGEST)
    return ops.reshape(ops.multiply(whole, step), np.array([0, 0, width]), special_zero=True)


if __name__ == "__main__":
    main()
