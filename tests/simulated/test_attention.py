"""Attention on cards of several generations: which kernel runs, what it takes, and what it takes in pieces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.support.tiny_models import Architecture, tiny_model
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.models import Encoder, load_encoder, resolve_model

MiB = 1 << 20
GiB = 1 << 30
T4, A100 = (7, 5), (8, 0)
ODD_HIDDEN = 48  # four heads of 12: not a multiple of 8, so no card has a fused kernel that takes a mask


@pytest.fixture
def card() -> Iterator[SimulatedControls]:
    """A roomy card; afterwards nothing may be left on it."""
    controls = simulate([8 * GiB])
    yield controls
    assert controls.usage(0)["allocated"] == 0


def scores_bytes(
    heads: int,
    key_heads: int,
    *,
    dtype: torch.dtype = torch.float16,
    dim: int = 16,
    masked: bool = False,
    tokens: int = 512,
) -> int:
    """What attention allocates on the card beyond its result."""
    query = torch.zeros(1, heads, tokens, dim, dtype=dtype, device="simulated:0")
    key = torch.zeros(1, key_heads, tokens, dim, dtype=dtype, device="simulated:0")
    mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device="simulated:0") if masked else None
    module = torch.get_device_module("simulated")
    before = module.memory_allocated(0)
    module.reset_peak_memory_stats(0)
    torch.nn.functional.scaled_dot_product_attention(
        query, key, key, attn_mask=mask, is_causal=not masked, enable_gqa=heads != key_heads
    )
    return int(module.max_memory_allocated(0) - before - query.nbytes)


def test_a_card_below_8_0_has_no_fused_kernel_for_grouped_queries(card: SimulatedControls) -> None:
    whole_scores = 4 * 512 * 512 * 4  # heads, and fp32 whatever the model computes in
    assert scores_bytes(4, 4) == 0
    assert scores_bytes(4, 2) > whole_scores
    card.set_capability(0, A100)
    assert scores_bytes(4, 2) == 0


def test_flash_attention_takes_neither_fp32_nor_a_mask(card: SimulatedControls) -> None:
    card.set_capability(0, A100)
    assert scores_bytes(4, 2, dtype=torch.float32) > 4 * 512 * 512 * 4
    assert scores_bytes(4, 2, masked=True) > 4 * 512 * 512 * 4
    assert scores_bytes(4, 4, masked=True) == 512 * 512 * 2  # the mask in the model's dtype


def test_the_memory_efficient_kernel_wants_aligned_heads_and_copies_an_unaligned_mask(card: SimulatedControls) -> None:
    assert scores_bytes(4, 4, dim=12) > 4 * 512 * 512 * 4
    assert scores_bytes(4, 4, dim=12, dtype=torch.float32) == 0
    assert scores_bytes(4, 4, masked=True) == 512 * 512 * 2
    assert scores_bytes(4, 4, masked=True, tokens=500) == pytest.approx(2 * 500 * 500 * 2, rel=0.02)


def load(architecture: Architecture, dtype: str = "float16", hidden: int = 128) -> Encoder:
    path = tiny_model(architecture, hidden=hidden, layers=3, max_tokens=4096)
    return load_encoder(resolve_model(str(path)), dtype, "cpu")


def peak_bytes(encoder: Encoder, *lengths: int) -> int:
    """What a forward of rows of these lengths takes on the card, beyond the weights."""
    texts = encoder.tokenize(["a" * (length - 2) for length in lengths])
    module = torch.get_device_module("simulated")
    encoder.model.to("simulated:0")
    try:
        before = module.memory_allocated(0)
        module.reset_peak_memory_stats(0)
        encoder.forward(encoder.batch(texts, np.arange(len(lengths))))
        return int(module.max_memory_allocated(0) - before)
    finally:
        encoder.model.to("cpu")


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
@pytest.mark.parametrize("capability", [T4, A100])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_memory_of_a_grouped_query_model_is_linear_in_the_length_of_one_text(
    card: SimulatedControls, architecture: Architecture, capability: tuple[int, int], dtype: str
) -> None:
    card.set_capability(0, capability)
    encoder = load(architecture, dtype)
    short, long = (peak_bytes(encoder, length) for length in (1000, 4000))
    assert long < 4.2 * short


@pytest.mark.parametrize("architecture", ["bert", "qwen3"])
@pytest.mark.parametrize("capability", [T4, A100])
def test_a_prediction_is_of_the_kernel_that_the_card_takes(
    card: SimulatedControls, architecture: Architecture, capability: tuple[int, int]
) -> None:
    card.set_capability(0, capability)
    fused, unfused = load(architecture), load(architecture, hidden=ODD_HIDDEN)
    for encoder in (fused, unfused):
        measured = peak_bytes(encoder, 701, 300)
        assert encoder.peak_bytes(2, 701, capability) == pytest.approx(measured, rel=0.1)
    assert unfused.peak_bytes(2, 701, capability) > 3 * fused.peak_bytes(2, 701, capability)


def test_the_peak_of_one_model_differs_between_generations_of_cards() -> None:
    encoder = load("bert", "bfloat16")
    assert encoder.peak_bytes(1, 1000, T4) > 2 * encoder.peak_bytes(1, 1000, A100)
