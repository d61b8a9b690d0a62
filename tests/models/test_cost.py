from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from ultimate_embedder.models.cost import ForwardCost, Operation, count_forward

HIDDEN, LAYERS, ROWS, LENGTH = 64, 2, 3, 16


def bert() -> Callable[[], Any]:
    config = transformers.BertConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=4 * HIDDEN
    )
    untyped: Any = transformers.BertModel
    model = untyped(config, add_pooling_layer=False).eval()
    ids = torch.ones(ROWS, LENGTH, dtype=torch.long)
    return lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids))


def test_the_arithmetic_of_a_forward_is_that_of_its_products_and_attention() -> None:
    tokens = ROWS * LENGTH
    products = 2 * tokens * LAYERS * 12 * HIDDEN * HIDDEN
    attention = 4 * ROWS * LAYERS * LENGTH * LENGTH * HIDDEN
    assert count_forward(bert).flops == products + attention


def test_views_and_empty_memory_are_no_kernels() -> None:
    def make() -> Callable[[], Any]:
        x = torch.ones(4, 4)
        return lambda: torch.empty(3).sum() + x.T.reshape(2, 8)[0].view(8).sum()

    assert [operation.name for operation in count_forward(make).operations] == ["sum", "clone", "sum", "add"]


def test_a_kernel_takes_its_arithmetic_or_its_bytes_whichever_is_longer() -> None:
    cost = ForwardCost((Operation("mm", 100, 10), Operation("add", 0, 40)))
    assert (cost.calls, cost.flops, cost.moved_bytes) == (2, 100, 50)
    assert cost.seconds(flops_per_second=10, bytes_per_second=10) == pytest.approx(10 + 4)
    assert cost.seconds(10, 10, launch_seconds=1) == pytest.approx(16)
