"""Searching an output: the same hits from every place, by every way that the question can be asked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.find.conftest import MODELS, QUICK, records
from tests.support.qdrant_server import QdrantServer
from tests.support.tiny_models import tiny_cross_encoder
from ultimate_embedder import OpenedOutput, embed, open_output, search, upload
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError, OutputError, UploadError, UsageError
from ultimate_embedder.files import folder_sha256, write_json
from ultimate_embedder.find import Hits, Searcher, SearchPlace, SearchRequest, open_query_encoder
from ultimate_embedder.find.score_fusion import Leg, fuse_legs

QUESTION = "the heat of a shock"


@pytest.fixture(scope="module")
def named(outputs: Path) -> OpenedOutput:
    return open_output(outputs / "named")


@pytest.fixture
def copy(outputs: Path, tmp_path: Path) -> Path:
    """A copy of `named`, to be changed."""
    return Path(shutil.copytree(outputs / "named", tmp_path / "out"))


@pytest.fixture(scope="module")
def server(outputs: Path) -> Iterator[QdrantServer]:
    with QdrantServer() as server:
        upload(outputs / "named", server.url, quiet=True)
        yield server


def ranking(hits: Hits) -> list[tuple[str, Any]]:
    return [(hit.chunk_id, pytest.approx(hit.score, abs=1e-4)) for hit in hits]


def test_zscores_are_those_of_all_candidates(named: OpenedOutput) -> None:
    hits = named.search(QUESTION, top=30)
    query = open_query_encoder(named, "docs", HubAccess(offline=True))
    ids = named["docs"].chunks().column("point_id").to_pylist()
    vectors = query.encode_query(QUESTION)
    legs = [Leg(ids, named["docs"].vectors(name) @ vectors[name][0]) for name in ("tiny-bert", "tiny-mpnet")]
    assert [hit.point_id for hit in hits] == [each.id for each in fuse_legs("zscore", legs)]
    assert (hits.fused_by, hits.candidates, len(hits)) == ("program", 30, 30)
    assert [hit.rank for hit in hits] == list(range(1, 31))


@pytest.mark.parametrize("fusion", ["zscore", "rrf", "dbsf"])
@pytest.mark.parametrize("weights", [None, {"tiny-bert": 1.0, "tiny-mpnet": 0.25}])
def test_the_shard_the_server_and_the_files_give_the_same_hits(
    named: OpenedOutput, server: QdrantServer, copy: Path, fusion: str, weights: Any
) -> None:
    options: dict[str, Any] = {
        "fusion": fusion,
        "weights": weights,
        "candidates": 10,
        "top": 12,
        "filter": "draft=true",
    }
    shutil.rmtree(copy / "docs" / "qdrant")
    from_shard = named.search(QUESTION, **options)
    from_server = named.search(QUESTION, url=server.url, **options)
    from_files = open_output(copy).search(QUESTION, **options)
    assert ranking(from_shard) == ranking(from_server) == ranking(from_files)
    assert from_shard[0].scores == pytest.approx(dict(from_files[0].scores), abs=1e-5)
    by_engine = weights is None and fusion != "zscore"
    assert [each.fused_by for each in (from_shard, from_server, from_files)] == [
        *(["engine" if by_engine else "program"] * 2),
        "program",
    ]
    assert "without a Qdrant shard" in from_files.place
    assert len(from_shard) == 12


def test_an_old_server_without_the_k_of_rrf_is_given_the_same_order(named: OpenedOutput) -> None:
    with QdrantServer(has_metadata=False) as old:
        upload(named.folder, old.url, quiet=True)
        hits = named.search(QUESTION, url=old.url, fusion="rrf")
    assert hits.fused_by == "program"
    assert ranking(hits) == ranking(named.search(QUESTION, fusion="rrf"))


def test_several_collections_are_searched_as_if_they_were_one(outputs: Path, named: OpenedOutput) -> None:
    several = open_output(outputs / "several")
    for fusion in ("zscore", "rrf"):
        hits = several.search(QUESTION, fusion=fusion, top=30)
        assert ranking(hits) == ranking(named.search(QUESTION, fusion=fusion, top=30))
    assert {hit.collection for hit in hits} == {"first", "second"}
    assert {hit.collection for hit in several["second"].search(QUESTION)} == {"second"}
    assert hits[0].payload["text"] == hits[0].text


def test_collections_of_different_models_are_not_mixed(outputs: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "chunks" / "a" / "a_chunks.json", records(3))
    write_json(tmp_path / "chunks" / "b" / "a_chunks.json", records(3))
    embed(tmp_path / "chunks", tmp_path / "out", models=MODELS, no_ensemble=["b"], **QUICK)
    output = open_output(tmp_path / "out")
    with pytest.raises(UsageError, match=r"different models.* a \(tiny-bert and tiny-mpnet\), b \(tiny-bert\)"):
        output.search(QUESTION)
    assert len(output["b"].search(QUESTION)) == 3


def test_one_model_of_several_is_loaded_alone(outputs: Path) -> None:
    output = open_output(outputs / "named")
    hits = output.search(QUESTION, using="tiny-mpnet", top=1)
    assert list(hits[0].scores) == ["tiny-mpnet"]
    assert hits.fusion is None
    (models,) = output.kept.models.values()
    assert [model.name for model in models._encoders] == ["tiny-mpnet"]


def test_one_vector_of_several_models_is_searched_with_all_of_them(outputs: Path) -> None:
    concat, single = open_output(outputs / "concat"), open_output(outputs / "single")
    assert concat.search(QUESTION).legs[0].name == "tiny-bert+tiny-mpnet"
    with pytest.raises(UsageError, match=r"one vector per point, made of tiny-bert and tiny-mpnet\. Use --using fused"):
        concat.search(QUESTION, using="tiny-bert")
    assert ranking(single.search(QUESTION, using="tiny-bert")) == ranking(single.search(QUESTION, using="fused"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"using": "sparse"}, "docs has no sparse vectors. Run embed again with --sparse bm25"),
        ({"using": "tiny-brt"}, "Did you mean tiny-bert"),
        ({"weights": {"bert": 1}}, "the legs are tiny-bert, tiny-mpnet"),
        ({"weights": {"tiny-bert": 0, "tiny-mpnet": 0}}, "one of them more than 0"),
        ({"filter": "pge=1"}, "Did you mean page"),
        ({"collection": "doc"}, "Its collections: docs"),
        ({"target": "x"}, "Add --url"),
        ({"model": "nowhere"}, "nowhere is not a folder"),
        ({"rerank": "tiny"}, "neither a known model nor a folder"),
        ({"tpo": 3}, r"search\(\) has no option 'tpo'. Did you mean top"),
        ({"top": 0}, "must be at least 1"),
    ],
)
def test_mistakes_are_answered_in_words(named: OpenedOutput, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        named.search(QUESTION, **options)


@pytest.mark.parametrize("question", ["", "  \n", "half \ud83d", "x" * 100_001])
def test_what_is_no_question_is_refused(named: OpenedOutput, question: str) -> None:
    with pytest.raises(UsageError, match="QUESTION"):
        named.search(question)


def test_more_hits_than_points_are_all_points(named: OpenedOutput) -> None:
    assert len(named.search(QUESTION, top=10**9, using="tiny-bert")) == 30
    assert len(named.search(QUESTION, top=10**9, fusion="rrf")) == 30
    assert len(named.search(QUESTION, filter="page=7")) == 0


def test_a_search_leaves_the_output_as_it_is(copy: Path) -> None:
    before = folder_sha256(copy)
    open_output(copy).search(QUESTION)
    assert folder_sha256(copy) == before


def test_an_output_on_a_read_only_disk_is_searched_in_a_copy(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ranking(open_output(copy).search(QUESTION))
    links: list[Any] = []
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    monkeypatch.setattr(os, "link", lambda *names: links.append(names))
    assert ranking(open_output(copy).search(QUESTION)) == expected
    assert links == []


def test_a_damaged_shard_is_left_aside_for_the_files(copy: Path) -> None:
    expected = ranking(open_output(copy).search(QUESTION))
    largest = max((copy / "docs" / "qdrant").rglob("*"), key=lambda path: path.stat().st_size)
    os.truncate(largest, 1000)
    with pytest.warns(UserWarning, match=r"qdrant is damaged: .* bytes.*chunks.parquet is searched instead"):
        hits = open_output(copy).search(QUESTION)
    assert ranking(hits) == expected
    (copy / "docs" / "chunks.parquet").unlink()
    with pytest.raises(OutputError, match="verify"):
        open_output(copy).search(QUESTION)


def test_an_output_of_a_killed_run_is_searched_if_its_exports_are_there(copy: Path) -> None:
    expected = ranking(open_output(copy).search(QUESTION))
    (copy / "summary.json").unlink()
    with pytest.raises(ModelError, match=r"tiny-bert is not in the registry.* --model DIR"):
        open_output(copy).search(QUESTION)
    assert ranking(open_output(copy).search(QUESTION, model=MODELS)) == expected


def test_points_without_journal_and_summary_are_searched_by_their_own_record(copy: Path) -> None:
    expected = ranking(open_output(copy).search(QUESTION))
    shutil.rmtree(copy / "docs" / "store")
    (copy / "summary.json").write_text("{")
    with pytest.warns(UserWarning, match=r"summary.json is not a summary.*chunks.parquet is searched instead"):
        assert ranking(open_output(copy).search(QUESTION, model=MODELS)) == expected


def test_if_no_collection_can_be_searched_the_first_reason_is_the_error(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_RETRY_FIRST_WAIT_S", "0.01")
    shutil.copytree(copy / "docs", copy / "more")
    with pytest.raises(UploadError, match=r"127.0.0.1:1: .*Is Qdrant running there"):
        open_output(copy).search(QUESTION, url="http://127.0.0.1:1")


def test_a_model_that_has_changed_is_not_used(copy: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(MODELS[0], tmp_path / "tiny-bert"))
    (moved / "README.md").write_text("changed")
    text = (copy / "summary.json").read_text()
    summary = json.loads(text.replace(str(Path(MODELS[0])), str(moved)))
    (copy / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(ModelError, match=r"tiny-bert on this machine is not the model of these vectors .*--model DIR"):
        open_output(copy).search(QUESTION)


def test_an_output_without_exports_says_what_to_do(copy: Path) -> None:
    shutil.rmtree(copy / "docs" / "qdrant")
    (copy / "docs" / "chunks.parquet").unlink()
    with pytest.raises(UsageError, match="--export parquet,qdrant"):
        open_output(copy).search(QUESTION)
    with pytest.raises(UsageError, match="is not an output of ultimate-embedder"):
        search(copy / "docs" / "store", QUESTION)
    with pytest.raises(UsageError, match="is not a folder"):
        search(copy / "nothing", QUESTION)


def test_on_a_server_the_alias_is_searched_and_vectors_of_others_are_not(copy: Path, outputs: Path) -> None:
    with QdrantServer() as server:
        with pytest.raises(UploadError, match=r"no collection docs__.* Upload it first.* --target"):
            open_output(copy).search(QUESTION, url=server.url)
        upload(copy, server.url, alias="live", quiet=True)
        hits = open_output(copy).search(QUESTION, url=server.url)
        assert hits.place == f"live on {server.url}"
        with pytest.raises(UploadError, match="a question would be encoded by the wrong models"):
            search(outputs / "single", QUESTION, url=server.url, target="live")


def test_a_server_that_is_down_is_named(named: OpenedOutput, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_RETRY_FIRST_WAIT_S", "0.001")
    with pytest.raises(UploadError, match="Is Qdrant running there"):
        named.search(QUESTION, url="http://127.0.0.1:1")


def test_payloads_in_the_shapes_of_other_programs_are_read(copy: Path) -> None:
    output = open_output(copy)
    expected = [(hit.text, hit.source, hit.section, hit.chunk_id) for hit in output.search(QUESTION, filter="page=1")]
    with QdrantServer() as server:
        for shape in ("langchain", "llama-index", "haystack"):
            upload(copy, server.url, payload=shape, collection=shape, quiet=True)
            hits = output.search(QUESTION, url=server.url, target=shape, filter="page=1")
            assert sorted((hit.text, hit.source, hit.section, hit.chunk_id) for hit in hits) == sorted(expected)


def test_a_searcher_keeps_its_models_for_the_next_question(outputs: Path) -> None:
    with Searcher(SearchPlace(outputs / "named")) as searcher:
        first, second = (searcher.search(SearchRequest(question)) for question in (QUESTION, "a jet"))
    assert first.seconds["load"] > 10 * second.seconds["load"]
    assert "open" in first.seconds
    assert "open" not in second.seconds
    assert first.hits != second.hits


def test_reranking_says_what_it_cost_and_what_it_changed(named: OpenedOutput) -> None:
    before = named.search(QUESTION, top=20, candidates=20)
    hits = named.search(QUESTION, top=5, candidates=20, rerank=str(tiny_cross_encoder()), devices="cpu")
    made = hits.reranked
    assert made is not None
    ranks = {hit.chunk_id: hit.rank for hit in before}
    assert [hit.rank_before for hit in hits] == [ranks[hit.chunk_id] for hit in hits]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert (made.model, made.device, made.dtype, made.pairs) == ("tiny-cross-encoder", "cpu", "float32", 20)
    assert made.tokens > 20 * len(QUESTION)  # a token per character
    assert made.truncated == 0
    assert made.new_in_top == sum((hit.rank_before or 0) > 5 for hit in hits)
    assert made.moved_up + made.moved_down + sum(hit.rank == hit.rank_before for hit in hits) == 5
    assert "20 pairs" in str(made)
    assert np.isfinite([hit.score for hit in hits]).all()


def test_hits_are_a_table_in_a_notebook_with_all_text_escaped(tmp_path: Path) -> None:
    write_json(
        tmp_path / "chunks" / "docs" / "a_chunks.json",
        [{"text": "<script>alert(1)</script>\x1b[31m", "metadata": {"source": "<b>", "big": ["x" * 1000] * 1000}}],
    )
    embed(tmp_path / "chunks", tmp_path / "out", models=MODELS[0], **QUICK)
    hits = open_output(tmp_path / "out").search(QUESTION)
    shown = hits._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown.replace("<b>the heat", "")
    assert "\x1b" not in shown
    assert len(shown) < 5000
    assert repr(hits) == "<Hits: 1 hit for 'the heat of a shock', by tiny-bert>"


@pytest.fixture(scope="module")
def sparse_server(outputs: Path) -> Iterator[QdrantServer]:
    with QdrantServer() as server:
        upload(outputs / "sparse", server.url, quiet=True)
        yield server


@pytest.mark.parametrize(
    "options",
    [
        {"using": "bm25"},
        {"using": "tiny-splade"},
        {"using": "sparse", "fusion": "rrf"},
        {"using": "hybrid"},
        {"using": "hybrid", "fusion": "rrf"},
        {"using": "hybrid", "fusion": "dbsf", "weights": {"bm25": 0.2}},
        {"using": "tiny-bert,bm25", "filter": "draft=true"},
    ],
    ids=str,
)
def test_sparse_and_hybrid_hits_are_the_same_everywhere(
    outputs: Path, sparse_server: QdrantServer, tmp_path: Path, options: dict[str, Any]
) -> None:
    output = open_output(outputs / "sparse")
    without_shard = Path(shutil.copytree(outputs / "sparse", tmp_path / "out"))
    shutil.rmtree(without_shard / "docs" / "qdrant")
    options = {"candidates": 12, "top": 12, **options}
    found = [
        output.search("shock of a jet", **options),
        output.search("shock of a jet", url=sparse_server.url, **options),
        open_output(without_shard).search("shock of a jet", **options),
    ]
    assert ranking(found[0]) == ranking(found[1]) == ranking(found[2])
    for hits in found[1:]:
        assert [dict(hit.scores) for hit in hits] == [pytest.approx(dict(hit.scores), abs=1e-4) for hit in found[0]]


def test_without_a_choice_all_vectors_are_searched_and_bm25_weighs_half(outputs: Path) -> None:
    output = open_output(outputs / "sparse")
    hits = output.search(QUESTION)
    assert [(leg.name, leg.kind, leg.weight) for leg in hits.legs] == [
        ("tiny-bert", "dense", 1.0),
        ("tiny-splade", "sparse", 0.5),
        ("bm25", "sparse", 0.5),
    ]
    assert [leg.name for leg in output.search(QUESTION, using="fused").legs] == ["tiny-bert"]


def test_words_are_searched_without_loading_a_model(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultimate_embedder.find.query.load_encoder", None)
    output = open_output(outputs / "sparse")
    hits = output.search("the nose and the plate", using="bm25")
    assert all({"nose", "plate"} & set(hit.text.split()) for hit in hits)
    assert "word of the question" in output.search("xylophone", using="bm25").why_empty
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_a_question_without_known_words_finds_nothing_by_words_and_the_rest_by_vectors(outputs: Path) -> None:
    output = open_output(outputs / "sparse")
    assert len(output.search("the of and", using="bm25")) == 0
    for fusion in ("zscore", "rrf", "dbsf"):
        hits = output.search("the of and", using="tiny-bert,bm25", fusion=fusion)
        assert [hit.chunk_id for hit in hits] == [hit.chunk_id for hit in output.search("the of and", using="fused")]
        assert hits[0].scores["bm25"] == 0
