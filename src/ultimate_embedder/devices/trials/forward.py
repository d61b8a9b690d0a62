"""A short forward on a device, compared with the same in fp64 on the host. Runs in a child process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.devices.trials.trial import Forward, TrialError

if TYPE_CHECKING:
    import torch

ROWS, TOKENS, DIM, HEADS = 4, 128, 384, 12  # a layer of a small model, and a batch of 512 tokens
REPEATS = 3
SEED = 0
MOST_ERROR = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1, "int8": 0.0}
"""The largest difference from fp64, as a share of the largest value; more is a wrong result."""


def run_forward(runtime: str, device: str, precision: str) -> Forward:
    """Compute something short; raises `TrialError` if the result is wrong, or whatever the runtime raises."""
    if runtime != "torch":
        compute, expected = _product_in(runtime)
    elif precision == "int8":
        compute, expected = _int8_product(device)
    else:
        compute, expected = _layer(device, precision)
    computed = np.asarray(compute(), dtype=np.float64)
    error = float(np.abs(computed - expected).max() / np.abs(expected).max())
    if not error <= MOST_ERROR[precision]:  # also NaN
        raise TrialError(f"the result is wrong: it differs by {error:.1%} of the largest value")
    return Forward(min(_milliseconds(compute) for _ in range(REPEATS)))


def _milliseconds(compute: Callable[[], Any]) -> float:
    started = time.perf_counter()
    compute()
    return (time.perf_counter() - started) * 1000


def _layer(device: str, precision: str) -> tuple[Callable[[], Any], Any]:
    import torch

    torch.set_num_threads(1)  # as a worker of this program has one core of a CPU
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    generator = torch.Generator().manual_seed(SEED)
    shapes = [(ROWS, TOKENS, DIM), (3 * DIM, DIM), (DIM, DIM), (4 * DIM, DIM), (DIM, 4 * DIM)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) / DIM**0.25 for shape in shapes]
    there = [tensor.to(device, dtype) for tensor in tensors]

    def compute() -> Any:
        with torch.inference_mode():
            return _transformer_layer(*there).double().cpu().numpy()

    with torch.inference_mode():
        return compute, _transformer_layer(*tensors).numpy()


def _transformer_layer(
    x: torch.Tensor, qkv: torch.Tensor, out: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    from torch.nn import functional as F  # noqa: N812 - torch's own custom

    rows, tokens, dim = x.shape
    heads = F.linear(x, qkv).view(rows, tokens, 3, HEADS, dim // HEADS).permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
    x = F.layer_norm(x + F.linear(attended.transpose(1, 2).reshape(rows, tokens, dim), out), (dim,))
    return F.layer_norm(x + F.linear(F.gelu(F.linear(x, up)), down), (dim,))


def _int8_factors() -> tuple[Any, Any]:
    random = np.random.default_rng(SEED)
    return random.integers(0, 127, (ROWS * TOKENS, DIM)), random.integers(-127, 127, (DIM, DIM))


def _int8_product(device: str) -> tuple[Callable[[], Any], Any]:
    import torch

    torch.set_num_threads(1)
    left, right = _int8_factors()
    there = [torch.from_numpy(each.astype(np.int8)).to(device) for each in (left, right)]
    return lambda: torch._int_mm(*there).cpu().numpy(), left @ right


def _product_in(runtime: str) -> tuple[Callable[[], Any], Any]:
    """The product that int8 models of the other runtimes are made of, in such a runtime."""
    left, right = _int8_factors()
    inputs = {"left": left.astype(np.uint8), "right": right.astype(np.int8)}
    graph = _product_graph()
    if runtime == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, inputs)[0], left @ right
    import openvino

    compiled = openvino.Core().compile_model(openvino.Core().read_model(model=graph), "CPU")
    return lambda: compiled(inputs)[0], left @ right


def _product_graph() -> bytes:
    from onnx import TensorProto, helper

    left = helper.make_tensor_value_info("left", TensorProto.UINT8, [ROWS * TOKENS, DIM])
    right = helper.make_tensor_value_info("right", TensorProto.INT8, [DIM, DIM])
    product = helper.make_tensor_value_info("product", TensorProto.INT32, [ROWS * TOKENS, DIM])
    node = helper.make_node("MatMulInteger", ["left", "right"], ["product"])
    model = helper.make_model(
        helper.make_graph([node], "product", [left, right], [product]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,  # as old as the opset: what every runtime reads
    )
    return bytes(model.SerializeToString())
