"""Write a transformer as an ONNX graph, in fp32 or int8."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.files import atomic_file

OPSET = 17
EXPORT_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError)


def export_onnx(transformer: Any, example: Mapping[str, Any], input_names: Sequence[str], path: Path) -> None:
    """Write the transformer to `path`, atomically; raises one of `EXPORT_ERRORS` if it cannot be traced."""
    import torch

    names = list(input_names)

    class TokenVectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = transformer

        def forward(self, *inputs: Any) -> Any:
            return self.transformer(**dict(zip(names, inputs, strict=True))).last_hidden_state

    with warnings.catch_warnings(), torch.inference_mode(), atomic_file(path) as file:
        warnings.simplefilter("ignore")
        torch.onnx.export(
            TokenVectors().eval(),
            tuple(example[name] for name in names),
            file,  # type: ignore[arg-type]
            input_names=names,
            output_names=["token_vectors"],
            dynamic_axes={name: {0: "rows", 1: "tokens"} for name in [*names, "token_vectors"]},
            opset_version=OPSET,
            dynamo=False,  # the other exporter is ten times slower and needs more packages
        )


def quantize_onnx(path: Path, target: Path) -> None:
    """Write the graph at `path` with int8 weights in its matrix products."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    part = target.with_suffix(".partial")
    logging.getLogger().addFilter(_is_not_advice)
    try:
        quantize_dynamic(path, part, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"])
    finally:
        logging.getLogger().removeFilter(_is_not_advice)
    part.replace(target)


def _is_not_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()
