"""Rerankers on a card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.hub_here import keep_own_code_below
from tests.support.tiny_models import tiny_cross_encoder, tiny_list_reranker
from ultimate_embedder.config import HubAccess
from ultimate_embedder.devices import CpuDevice, Leases, MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import SimulatedControls
from ultimate_embedder.events import Event
from ultimate_embedder.execution import RerankModel, rerank
from ultimate_embedder.find import Hit, reorder
from ultimate_embedder.models import find_spec, load_reranker, resolve_reranker
from ultimate_embedder.types import ResolvedModel

KEY = "jina-reranker-v3"
QUERY, TEXTS = "which one?", [f"{number} " * (number % 7 + 1) for number in range(20)]


def test_a_tensor_of_the_host_belongs_to_no_stream(two_t4s: SimulatedControls) -> None:
    with pytest.raises(NotImplementedError, match="record_stream"):
        torch.ones(1).record_stream(torch.Stream(device="simulated:0"))


def test_a_reranker_that_returns_scores_on_the_host_works_on_a_card(
    seen: list[Event], two_t4s: SimulatedControls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_own_code_below(tmp_path, monkeypatch)
    folder = tiny_list_reranker()
    model = ResolvedModel(KEY, find_spec(KEY), folder, "cache", "commit", "digest", 0)
    reranker = load_reranker(model, "float32", trusted=[KEY])
    pairs = reranker.pairs(QUERY, TEXTS)
    expected = reranker.forward(reranker.batch(pairs, np.arange(len(TEXTS)))).numpy()[:, 0]
    devices = open_devices("simulated:2x15GiB", MemoryLimits())
    scores = rerank(QUERY, TEXTS, reranker, lambda: reranker, devices[:1], Leases(), seen.append).scores
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_kernels_that_a_reranker_brings_along_launch_on_its_card(seen: list[Event], two_t4s: SimulatedControls) -> None:
    model = resolve_reranker(str(tiny_cross_encoder()), HubAccess(offline=True), seen.append)
    reranker, current = load_reranker(model, "float32"), torch.get_device_module("simulated").current_device
    used: list[int] = []
    reranker.model.register_forward_pre_hook(lambda *_: used.append(current()))
    devices = open_devices("simulated:2x15GiB", MemoryLimits(), ["1", "0"])
    rerank(QUERY, TEXTS, reranker, lambda: reranker, devices, Leases(), seen.append)
    assert set(used) == {1}
    assert current() == 0


@pytest.mark.parametrize(
    ("size", "mitigation"),
    [("24MiB", "oom_chunk"), ("8MiB", "weights_on_host")],
    ids=["small", "smaller than the model"],
)
def test_hits_are_reranked_in_the_same_order_on_a_card_that_is_too_small(
    seen: list[Event], size: str, mitigation: str
) -> None:
    model = resolve_reranker(str(tiny_cross_encoder(hidden=256, layers=2)), HubAccess(offline=True), seen.append)
    hits = [
        Hit(rank, 1.0, {}, f"c{rank}", f"p{rank}", "docs", "", (), f"{rank} " * (rank * 14), {})
        for rank in range(1, 15)
    ]
    cards = open_devices(f"simulated:1x{size}", MemoryLimits())
    found = [
        reorder(QUERY, hits, RerankModel(model, (), devices, Leases(), "fp32"), top=5, emit=seen.append)
        for devices in ([CpuDevice()], cards)
    ]
    (on_host, by_host), (on_card, by_card) = found
    assert [hit.chunk_id for hit in on_card] == [hit.chunk_id for hit in on_host]
    np.testing.assert_allclose([hit.score for hit in on_card], [hit.score for hit in on_host], atol=1e-4)
    assert (by_host.mitigations, by_host.device, by_card.device) == ((), "cpu", "simulated:0")
    assert mitigation in by_card.mitigations
    assert by_card.truncated == by_host.truncated == 3
    assert (by_card.moved_up, by_card.new_in_top) == (by_host.moved_up, by_host.new_in_top)
    assert cards[0].snapshot().allocated_bytes == 0
