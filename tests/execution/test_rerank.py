"""Scoring candidates: in batches, under a lease, each score where it belongs."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from tests.support.tiny_models import tiny_cross_encoder
from ultimate_embedder.config import HubAccess
from ultimate_embedder.devices import CpuDevice, Leases
from ultimate_embedder.events import Event, LeaseAcquired, LeaseReleased, ModelPlaced
from ultimate_embedder.execution import rerank
from ultimate_embedder.models import Reranker, load_reranker, resolve_reranker

QUERY = "which one?"
TEXTS = [f"{number} " * (number % 60 + 1) for number in range(80)]  # too many tokens for one batch


@pytest.fixture
def reranker(seen: list[Event]) -> Reranker:
    model = resolve_reranker(str(tiny_cross_encoder()), HubAccess(offline=True), seen.append)
    return load_reranker(model, "float32")


def run(reranker: Reranker, texts: list[str], seen: list[Event]) -> np.ndarray:
    return rerank(QUERY, texts, reranker, lambda: reranker, [CpuDevice()], Leases(), seen.append).scores


def test_every_text_gets_its_own_score_whatever_batch_it_is_in(reranker: Reranker, seen: list[Event]) -> None:
    reference = CrossEncoder(str(tiny_cross_encoder()), device="cpu")
    expected = reference.predict([(QUERY, text) for text in TEXTS], show_progress_bar=False)
    np.testing.assert_allclose(run(reranker, TEXTS, seen), expected, atol=1e-6)


def test_the_device_is_leased_and_given_back(reranker: Reranker, seen: list[Event]) -> None:
    run(reranker, TEXTS[:2], seen)
    assert [type(event) for event in seen] == [LeaseAcquired, ModelPlaced, LeaseReleased]
    released = seen[-1]
    assert isinstance(released, LeaseReleased)
    assert (released.model, released.devices, released.leftovers) == ("tiny-cross-encoder", ["cpu"], [])


def test_one_text_is_enough(reranker: Reranker, seen: list[Event]) -> None:
    assert run(reranker, ["alone"], seen).shape == (1,)
