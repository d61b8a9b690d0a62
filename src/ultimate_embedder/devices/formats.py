"""The number format that `--precision` means, by kind of device."""

from __future__ import annotations

from ultimate_embedder.types import Capability

FIRST_WITH_BFLOAT16 = (8, 0)


def card_format(precision: str, capability: Capability) -> str:
    """fp16 on cards before capability 8.0, bf16 from there on; whatever `is_bf16_supported` says of emulation."""
    if precision == "fp32":
        return "float32"
    if precision == "fp16":
        return "float16"
    return "bfloat16" if capability >= FIRST_WITH_BFLOAT16 else "float16"


def cpu_format(precision: str) -> str:
    """float32, or int8 where that is asked for: half precision is no faster there."""
    return "int8" if precision == "int8" else "float32"
