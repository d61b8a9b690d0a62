"""An output is evaluated in every way, from what is stored."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from tests.find.evaluate.conftest import QRELS, QUERIES, RECORDS, make_output
from tests.support.tiny_models import tiny_cross_encoder, tiny_model, tiny_splade
from ultimate_embedder import embed, evaluate, open_output
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.export import PointsFile
from ultimate_embedder.find import open_sparse_query, read_evaluations
from ultimate_embedder.find.evaluate.sparse import make_sparse_leg
from ultimate_embedder.lock import hold_output
from ultimate_embedder.models import WordCounter
from ultimate_embedder.output import Output
from ultimate_embedder.sparse import join_sparse
from ultimate_embedder.state import Damaged
from ultimate_embedder.verify import verify_output

GIVEN: dict[str, Any] = {"queries": QUERIES, "qrels": QRELS, "quiet": True}
BERT, MPNET = "tiny-bert", "tiny-mpnet"


@pytest.fixture
def out(tiny_output: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_output, tmp_path / "out"))


def test_every_way_is_measured(out: Path) -> None:
    found = open_output(out).evaluate(**GIVEN, dims=[16], tune=False)
    kinds = {row.name: row.kind for row in found.rows}
    assert kinds == {
        BERT: "model",
        MPNET: "model",
        "concat": "vector_fusion",
        "weighted_average": "vector_fusion",
        **dict.fromkeys(("zscore", "rrf", "dbsf"), "fusion"),
        "bm25": "sparse",
        **dict.fromkeys(("hybrid zscore", "hybrid rrf", "hybrid dbsf"), "hybrid"),
        **dict.fromkeys((f"hybrid zscore without {name}" for name in (BERT, MPNET)), "hybrid"),
        **dict.fromkeys((f"{name}, 16 dims" for name in (BERT, MPNET)), "matryoshka"),
        **{
            f"{name}, {how}": "quantized"
            for name in (BERT, MPNET)
            for how in ("int8", "binary", "binary, 100 rescored")
        },
        **{
            f"{name}, best 100 in perfect order": "ceiling"
            for name in (BERT, MPNET, "concat", "weighted_average", "zscore", "rrf", "dbsf", "bm25", "hybrid zscore",
                         "hybrid rrf", "hybrid dbsf")
        },
    }  # fmt: skip
    assert found.default == "hybrid zscore"
    # words of a topic are in its chunks alone: sparse search finds all of them first
    assert found.row("bm25").mrr == found.row("bm25").recall == found.row("bm25").map == 1.0
    # of thirty chunks all are candidates: what is found can be put into the perfect order
    assert found.row("zscore, best 100 in perfect order").ndcg == 1.0
    for row in found.rows:
        low, high = row.interval["ndcg@10"]
        assert 0 <= low <= row.ndcg <= high <= 1
    assert found.matched.queries == len(QUERIES)
    assert {each.about for each in found.verdict} >= {"advice", "model", "ensemble", "drop", "sparse", "reranker"}


def test_the_second_time_no_model_is_loaded_and_the_figures_are_the_same(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluate(out, **GIVEN)
    monkeypatch.setattr("ultimate_embedder.find.query.load_encoder", _must_not_be_called)
    second = evaluate(out, **GIVEN)
    assert second.rows == first.rows
    with pytest.raises(AssertionError, match="a model is loaded"):
        evaluate(out, queries={**QUERIES, "wing": "another question"}, qrels=QRELS, quiet=True)


def _must_not_be_called(*given: object, **more: object) -> None:
    raise AssertionError("a model is loaded")


def test_an_output_that_cannot_be_written_to_is_evaluated_all_the_same(out: Path) -> None:
    with hold_output(out):  # another process writes to it; a read-only disk is the same error
        found = evaluate(out, **GIVEN)
    assert found.row("bm25").mrr == 1.0
    assert not Output(out).evaluation_path.exists()
    assert not (out / "docs" / "queries").exists()


def test_damaged_vectors_of_queries_and_a_damaged_result_are_noticed_and_computed_again(out: Path) -> None:
    first = evaluate(out, **GIVEN)
    (shard, *_) = sorted((out / "docs" / "queries").glob("*/shard-*.npy"))
    shard.write_bytes(shard.read_bytes()[:-4] + b"\0\0\0\1")
    Output(out).evaluation_path.write_text("{}")
    damaged = verify_output(out, 0, HubAccess(offline=True)).damaged
    assert [problem.endswith("run evaluate again") for problem in damaged] == [True, True]
    assert isinstance(read_evaluations(Output(out)), Damaged)
    assert evaluate(out, **GIVEN).rows == first.rows
    assert verify_output(out, 0, HubAccess(offline=True)).damaged == []


def test_the_models_of_fused_vectors_are_found_in_the_store(tiny_output: Path, tmp_path: Path) -> None:
    fused = make_output(tmp_path / "fused", fusion="weighted_average", sparse=None)
    found, named = evaluate(fused, **GIVEN), evaluate(tiny_output, **GIVEN)
    for name in (BERT, MPNET, "weighted_average", "concat", "zscore"):
        assert found.row(name).ndcg == pytest.approx(named.row(name).ndcg, abs=1e-9)
    assert found.default == "weighted_average"
    shutil.rmtree(fused / "docs" / "store")
    without = evaluate(fused, **GIVEN)
    assert [row.name for row in without.rows if row.kind != "ceiling"] == ["weighted_average"]
    assert without.row("weighted_average").ndcg == pytest.approx(found.row("weighted_average").ndcg)
    assert any("cannot be evaluated alone" in note for note in without.notes)


def test_named_vectors_are_read_from_the_export_where_the_store_is_gone(out: Path) -> None:
    before = evaluate(out, **GIVEN)
    for folder in (out / "docs" / "store").glob("*/"):
        shutil.rmtree(folder)
    after = evaluate(out, **GIVEN)
    assert [row.ndcg for row in after.rows] == pytest.approx([row.ndcg for row in before.rows])
    assert any("read from chunks.parquet" in note for note in after.notes)


def test_judgements_of_documents_need_the_field_which_is_suggested(out: Path) -> None:
    documents = {query: {query: 1} for query in QUERIES}
    with pytest.raises(UsageError, match=r"no judged document is in docs: .* Try --doc-field metadata.document"):
        evaluate(out, queries=QUERIES, qrels=documents, quiet=True)
    found = evaluate(out, queries=QUERIES, qrels=documents, doc_field="metadata.document", quiet=True)
    assert (found.chunks, found.documents) == (len(RECORDS), len(QUERIES))
    assert found.row("bm25").mrr == 1.0
    assert found.row(BERT).recall == 1.0  # five documents are all found
    with pytest.raises(UsageError, match=r"no chunk of docs has a field nowhere. The first chunk has .*document"):
        evaluate(out, queries=QUERIES, qrels=documents, doc_field="nowhere", quiet=True)


def test_ids_that_match_nothing_are_reported_in_both_directions(out: Path) -> None:
    odd = {"nobody": {"wing-lift-0": 1}, "heat": {"gone-1": 2, "heat-flow-0": 1}, "jet": {"jet-noise-0": 0}}
    qrels = {**QRELS, **odd}
    queries = {**QUERIES, "unjudged": "what is this"}
    found = evaluate(out, queries=queries, qrels=qrels, quiet=True)
    assert found.matched.queries == 4
    assert found.matched.queries_without_judgements.examples == ["unjudged"]
    assert found.matched.judged_queries_without_text.examples == ["nobody"]
    assert found.matched.queries_without_relevant.examples == ["jet"]
    assert found.matched.documents_not_found.examples == ["gone-1"]
    assert found.matched.relevant_not_found == 1
    assert any("judged documents that are not in the collection: 1 (gone-1)" in note for note in found.notes)
    assert found.row("bm25").recall < 1.0  # what is gone counts as not found
    with pytest.raises(UsageError, match="no query has a judgement: ids of queries are x, ids in the judgements wing"):
        evaluate(out, queries={"x": "text"}, qrels=QRELS, quiet=True)


def test_a_reranker_orders_the_candidates_of_the_default_search(out: Path) -> None:
    found = evaluate(out, **GIVEN, rerank=str(tiny_cross_encoder(hidden=32, layers=1)), candidates=7)
    (row,) = [row for row in found.rows if row.kind == "reranked"]
    assert row.name == "hybrid zscore, 7 reranked by tiny-cross-encoder"
    assert row.recall == found.row("hybrid zscore").recall
    assert row.ndcg != found.row("hybrid zscore").ndcg
    assert any(each.about == "reranker" and "reranked by" in each.words for each in found.verdict)


def test_another_output_is_compared_query_by_query(out: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    embed(
        RECORDS, other, name="docs", models=str(tiny_model("bert", hidden=32, layers=1)), exports="parquet", quiet=True
    )
    found = evaluate(out, **GIVEN, against=other)
    assert found.against is not None
    assert found.against.there == BERT
    change = found.against.change
    assert change.difference == pytest.approx(found.row(BERT).ndcg - found.row("hybrid zscore").ndcg)
    assert change.better + change.worse + change.equal == len(QUERIES)
    assert all(each.there < each.here for each in found.against.worse)
    assert found.verdict[-1].about == "against"
    same = evaluate(out, **GIVEN, against=out).against
    assert same is not None
    assert same.change.difference == 0.0
    assert same.change.p == 1.0


def test_queries_are_made_of_headings_and_the_check_says_what_it_is_worth(out: Path, tmp_path: Path) -> None:
    found = evaluate(out, make_queries=10, save_queries=tmp_path / "made", quiet=True)
    assert found.made
    assert found.matched.queries == 10
    told = " ".join(found.notes)
    assert "10 queries were made of 30 titles and headings" in told
    assert "it cannot show how well real questions are answered" in told
    saved = evaluate(
        out, queries=tmp_path / "made" / "queries.jsonl", qrels=tmp_path / "made" / "qrels.jsonl", quiet=True
    )
    assert saved.rows == found.rows
    plain = tmp_path / "plain"
    embed(["a text", "another"], plain, models=str(tiny_model("bert", hidden=32, layers=1)), quiet=True)
    with pytest.raises(UsageError, match="has no titles or headings to make queries of"):
        evaluate(plain, make_queries=True, quiet=True)


def test_the_result_is_kept_and_the_newest_of_a_collection_stays(out: Path) -> None:
    evaluate(out, **GIVEN)
    found = evaluate(out, **GIVEN, seed=1)
    kept = read_evaluations(Output(out))
    assert not isinstance(kept, Damaged)
    assert [each.as_dict() for each in kept] == [found.as_dict()]
    assert json.loads(Output(out).evaluation_path.read_text())["evaluations"][0]["rows"][0]["ndcg@10"] >= 0


def test_figures_of_one_model_are_those_of_sentence_transformers(minilm: Path, tmp_path: Path) -> None:
    texts: dict[str, Any] = {record["id"]: record["text"] for record in RECORDS}
    records = [{"id": name, "text": text} for name, text in texts.items()]
    embed(records, tmp_path / "out", name="docs", models="all-minilm-l6-v2", exports="parquet", quiet=True)
    draw = random.Random(0)  # judgements that no model could guess, so that no figure is 1
    qrels = {query: dict.fromkeys(draw.sample(list(texts), 5), 1) for query in QUERIES}
    found = evaluate(tmp_path / "out", queries=QUERIES, qrels=qrels, quiet=True).row("all-minilm-l6-v2")
    relevant = {query: set(grades) for query, grades in qrels.items()}
    depths: dict[str, Any] = {"map_at_k": [100], "precision_recall_at_k": [100], "accuracy_at_k": [1]}
    settings: dict[str, Any] = {"write_csv": False, "show_progress_bar": False}
    evaluator = InformationRetrievalEvaluator(dict[str, Any](QUERIES), texts, relevant, **depths, **settings)
    theirs = evaluator(SentenceTransformer(str(minilm), device="cpu"))
    ours = [found.ndcg, found.recall, found.mrr, found.map]
    names = ("cosine_ndcg@10", "cosine_recall@100", "cosine_mrr@10", "cosine_map@100")
    assert ours == pytest.approx([theirs[name] for name in names], abs=1e-3)
    assert 0 < found.map < found.mrr < 1


def test_splade_vectors_are_a_sparse_leg_and_their_queries_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splade = tiny_splade()
    out = make_output(tmp_path / "out", models=str(tiny_model("bert", hidden=32, layers=1)), sparse=f"splade={splade}")
    found = evaluate(out, **GIVEN)
    assert found.row(splade.name).kind == "sparse"
    assert found.default == "hybrid zscore"
    monkeypatch.setattr("ultimate_embedder.find.sparse.load_sparse_model", _must_not_be_called)
    assert evaluate(out, **GIVEN).rows == found.rows


def test_a_splade_model_that_was_moved_is_named(tmp_path: Path) -> None:
    splade, moved = tmp_path / "tiny-splade", tmp_path / "moved"
    shutil.copytree(tiny_splade(), splade)
    out = make_output(tmp_path / "out", models=str(tiny_model("bert", hidden=32, layers=1)), sparse=f"splade={splade}")
    splade.rename(moved)
    with pytest.raises(ModelError, match="give --model DIR"):
        evaluate(out, **GIVEN)
    assert evaluate(out, model=str(moved), **GIVEN).row("tiny-splade").kind == "sparse"


def test_sparse_scores_are_those_of_bm25s_for_the_same_words(tiny_output: Path) -> None:
    bm25s = pytest.importorskip("bm25s")
    output = open_output(tiny_output)
    points = PointsFile.open(output["docs"].points_file)
    encoder = open_sparse_query(output, "docs", "bm25", HubAccess(offline=True))
    assert isinstance(encoder.encoder, WordCounter)
    asked = join_sparse([encoder.encode_query(text) for text in QUERIES.values()])
    leg = make_sparse_leg(encoder.facts, asked, points)
    (block,) = leg.source.blocks(100)
    ours = leg.scorer.bind(slice(0, len(QUERIES)))({"bm25": block})
    counts = encoder.encoder.count([record["text"] for record in RECORDS])
    pairs = [list(zip(*counts[row], strict=True)) for row in range(len(RECORDS))]
    words = [[str(word) for word, count in row for _ in range(int(count))] for row in pairs]
    theirs = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    theirs.index(words, show_progress=False)
    for query, scores in enumerate(ours):
        known = [str(word) for word in asked[query][0] if any(str(word) in text for text in words)]
        assert scores == pytest.approx(theirs.get_scores(known) * 2.2, rel=1e-5)  # it leaves out the factor k1 + 1
