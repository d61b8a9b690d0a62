"""`search_with_reranking` with a reranker: fetched once, leased, trusted only if asked for, and obeyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import CrossEncoder

from tests.compat.conftest import Make
from tests.conftest import WriteChunks
from tests.support.hub_server import HubServer
from tests.support.tiny_models import tiny_cross_encoder, tiny_list_reranker
from ultimate_embedder.compat import RerankingConfig, UltimateKaggleEmbedderV4
from ultimate_embedder.errors import MissingModelError, ModelError, UsageError

KEY, HUB_ID = "bge-reranker-v2-m3", "BAAI/bge-reranker-v2-m3"
CODE_KEY, CODE_HUB_ID = "jina-reranker-v3", "jinaai/jina-reranker-v3"
QUERY = "which texts are about screws?"
TEXTS = [f"{thing} {number}, " * (number % 5 + 1) for number in range(6) for thing in ("screw", "nail", "hammer")]
Hits = list[dict[str, Any]]


@pytest.fixture
def embedder(make: Make, write_chunks: WriteChunks) -> UltimateKaggleEmbedderV4:
    """One that has generated; its reranker is yet to be chosen."""
    made = make()
    made.load_chunks_from_processing(write_chunks(TEXTS))
    made.generate_embeddings_kaggle_optimized()
    return made


def search(embedder: UltimateKaggleEmbedderV4, reranker: str | Path, *, trust: bool = False, **options: int) -> Hits:
    embedder.reranking_config = RerankingConfig(str(reranker), enable_reranking=True, trust_remote_code=trust)
    return embedder.search_with_reranking(QUERY, **options)


def assert_in_order(hits: Hits) -> None:
    scores = [hit["rerank_score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_scores_are_those_of_the_cross_encoder_and_decide_the_order(
    embedder: UltimateKaggleEmbedderV4, hub: HubServer
) -> None:
    hub.publish(HUB_ID, tiny_cross_encoder())
    hits = search(embedder, KEY)
    reference = CrossEncoder(str(tiny_cross_encoder()), device="cpu")
    expected = reference.predict([(QUERY, hit["text"]) for hit in hits], show_progress_bar=False)
    assert sorted(hit["text"] for hit in hits) == sorted(TEXTS)
    assert [hit["rerank_score"] for hit in hits] == pytest.approx(expected.tolist(), abs=1e-6)
    assert_in_order(hits)
    assert [hit["index"] for hit in hits] != [hit["index"] for hit in sorted(hits, key=lambda hit: -hit["score"])]


def test_a_reranker_is_fetched_once(embedder: UltimateKaggleEmbedderV4, hub: HubServer) -> None:
    hub.publish(HUB_ID, tiny_cross_encoder())
    first = search(embedder, KEY)
    assert len(hub.asked("GET .*/resolve/.*/model.safetensors$")) == 1
    hub.requests.clear()
    assert search(embedder, KEY) == first
    assert hub.requests == []


def test_a_reranker_leases_its_device(embedder: UltimateKaggleEmbedderV4) -> None:
    before = len(embedder.telemetry.gpu_lease_events)
    search(embedder, tiny_cross_encoder())
    leases = embedder.telemetry.gpu_lease_events[before:]
    assert [event["event_type"] for event in leases] == ["acquire", "release"]
    assert {event["model"] for event in leases} == {"tiny-cross-encoder"}
    assert all(event["device_ids"] == ["cpu"] for event in leases)


def test_only_the_candidates_are_scored_and_only_the_best_are_given(embedder: UltimateKaggleEmbedderV4) -> None:
    nearest = embedder.search_with_reranking(QUERY, top_k=7)
    candidates = search(embedder, tiny_cross_encoder(), initial_candidates=7)
    assert {hit["index"] for hit in candidates} == {hit["index"] for hit in nearest}
    assert search(embedder, tiny_cross_encoder(), top_k=2, initial_candidates=7) == candidates[:2]


def test_a_reranker_that_is_not_enabled_is_not_used(embedder: UltimateKaggleEmbedderV4) -> None:
    embedder.reranking_config = RerankingConfig(KEY)
    assert all("rerank_score" not in hit for hit in embedder.search_with_reranking(QUERY))


def test_local_files_only_holds_for_rerankers_too(make: Make, write_chunks: WriteChunks, hub: HubServer) -> None:
    hub.publish(HUB_ID, tiny_cross_encoder())
    embedder = make(local_files_only=True)
    embedder.load_chunks_from_processing(write_chunks(TEXTS))
    embedder.generate_embeddings_kaggle_optimized()
    with pytest.raises(MissingModelError, match=KEY):
        search(embedder, KEY)
    assert hub.requests == []


def test_an_embedder_is_no_reranker(embedder: UltimateKaggleEmbedderV4, models: list[str]) -> None:
    with pytest.raises(ModelError, match="tiny-bert is an embedding model, not a reranker"):
        search(embedder, models[0])


def test_code_of_a_reranker_is_refused_unless_it_is_trusted(embedder: UltimateKaggleEmbedderV4, hub: HubServer) -> None:
    hub.publish(CODE_HUB_ID, tiny_list_reranker())
    with pytest.raises(UsageError, match=rf"{CODE_KEY} runs code .* RerankingConfig\(trust_remote_code=True\)"):
        search(embedder, CODE_KEY)
    assert hub.requests == []


@pytest.mark.parametrize("by_config", [True, False])
def test_code_of_a_reranker_that_is_trusted_is_run(
    make: Make, write_chunks: WriteChunks, hub: HubServer, by_config: bool
) -> None:
    hub.publish(CODE_HUB_ID, tiny_list_reranker())
    embedder = make(trust_remote_code=[] if by_config else [CODE_KEY])
    embedder.load_chunks_from_processing(write_chunks([*TEXTS, QUERY]))
    embedder.generate_embeddings_kaggle_optimized()
    hits = search(embedder, CODE_KEY, trust=by_config)
    assert_in_order(hits)
    assert len({hit["rerank_score"] for hit in hits}) > len(TEXTS) / 2
    assert [event["model"] for event in embedder.telemetry.gpu_lease_events][-2:] == [CODE_KEY] * 2
