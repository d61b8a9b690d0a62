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
    # bf16 is what is asked for, or what `auto` means from capability 8.0 on
    return "bfloat16" if capability >= FIRST_WITH_BFLOAT16 else "float16"


def cpu_format(precision: str) -> str:
    """float32, or int8 or bf16 where that is asked for: fp16 is no faster there."""
    return {"int8": "int8", "bf16": "bfloat16"}.get(precision, "float32")
