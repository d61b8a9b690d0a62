"""Rankings made block by block are those of all chunks at once, and of the engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
import pytest
from qdrant_edge import (
    BinaryQuantizationConfig,
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeShard,
    EdgeVectorParams,
    Point,
    QuantizationSearchParams,
    Query,
    QueryRequest,
    ScalarQuantizationConfig,
    ScalarType,
    SearchParams,
    UpdateOperation,
)

from ultimate_embedder.find import Leg, fuse_legs
from ultimate_embedder.find.candidates import (
    Candidates,
    Ranking,
    TieBreak,
    TopRows,
    as_documents,
    find_candidates,
    rescored,
)
from ultimate_embedder.find.evaluate import scoring
from ultimate_embedder.find.evaluate.quantize import Int8, binary
from ultimate_embedder.find.evaluate.scoring import dot_products, rank_all, score_rows

RANDOM = np.random.default_rng(0)


class Rows:
    """Vectors in memory, as a source."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        for start in range(0, len(self.vectors), rows):
            yield self.vectors[start : start + rows]


def test_blocks_give_the_best_rows_of_all_and_ties_are_broken_at_random_but_always_alike() -> None:
    scores = RANDOM.standard_normal((4, 100)).round(1).astype(np.float32)
    ties = TieBreak(100, seed=3)
    top = TopRows(4, 20, ties)
    for start in range(0, 100, 30):
        top.add(start, scores[:, start : start + 30])
    found = top.ranking()
    for query in range(4):
        assert found.scores[query].tolist() == sorted(scores[query], reverse=True)[:20]
        assert (scores[query][found.rows[query]] == found.scores[query]).all()
        first = [row for row in found.rows[query] if scores[query][row] == found.scores[query][0]]
        assert first == sorted(first, key=lambda row: ties.place[row])


def test_all_scorers_read_each_block_once_and_rows_can_be_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "BLOCK_ROWS", 16)
    chunks, queries = RANDOM.standard_normal((50, 8)), RANDOM.standard_normal((6, 8))
    same = dot_products("m", {"m": queries}, lambda blocks: blocks["m"], lambda blocks: blocks["m"])
    half = dot_products("half", {"m": queries}, lambda b: b["m"][:, :4], lambda b: b["m"][:, :4], exact="m")
    ties = TieBreak(50, seed=0)
    found = rank_all([same, half], {"m": Rows(chunks)}, slice(2, 6), 10, ties)
    wanted = np.argsort(-(queries @ chunks.T), axis=1)[2:, :10]
    assert (found["m"].rows == wanted).all()
    exact = found["half"].exact
    assert exact is not None
    scores = score_rows([same], {"m": Rows(chunks)}, slice(2, 6), found["half"].rows)["m"]
    assert scores == pytest.approx(exact, abs=1e-5)
    again = rescored(found["half"], 5)
    assert (np.diff(np.take_along_axis((queries @ chunks.T)[2:], again.rows[:, :5], axis=1)) <= 0).all()
    assert (again.rows[:, 5:] == found["half"].rows[:, 5:]).all()


@pytest.mark.parametrize("method", ["zscore", "rrf", "dbsf"])
def test_fused_rankings_are_those_of_the_search(method: str) -> None:
    ties = TieBreak(40, seed=1)
    scores = {name: RANDOM.standard_normal((3, 40)).astype(np.float32) for name in ("a", "b")}
    rows = {name: np.argsort(-each, axis=1).astype(np.int32) for name, each in scores.items()}
    legs = {name: Ranking(rows[name], np.take_along_axis(scores[name], rows[name], axis=1)) for name in rows}
    columns, found = find_candidates(legs, 7, ties)
    known = {name: np.take_along_axis(each, np.maximum(columns, 0), axis=1) for name, each in scores.items()}
    fused = Candidates(columns, found, known).fuse(method, {"a": 1.0, "b": 0.5})
    for query in range(3):
        best = {name: rows[name][query, :7] for name in rows}
        pool = np.union1d(best["a"], best["b"]) if method == "zscore" else None
        wanted = [
            Leg([f"{row:02}" for row in (pool if pool is not None else best[name])],
                scores[name][query][pool if pool is not None else best[name]], weight)
            for name, weight in (("a", 1.0), ("b", 0.5))
        ]  # fmt: skip
        ours = [row for row in fused.rows[query].tolist() if row >= 0]
        assert ours == [int(each.id) for each in fuse_legs(method, wanted)]


def test_a_document_ranks_where_its_best_chunk_does() -> None:
    document = np.array([0, 0, 1, 1, 2])
    assert as_documents(np.array([3, 4, 2, 1, 0, -1]), document).tolist() == [1, 2, 0]
    assert as_documents(np.array([3, 4, -1]), None).tolist() == [3, 4]


def test_quantized_scores_are_those_of_the_engine() -> None:
    vectors = RANDOM.standard_normal((400, 32)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query, chunks = vectors[0], vectors[1:]
    bounds = Int8.of(chunks)
    scalar = ScalarQuantizationConfig(ScalarType.Int8, quantile=0.99, always_ram=True)
    assert _engine_scores(chunks, query, scalar) == pytest.approx(bounds(chunks) @ bounds(query), abs=1e-5)
    bits = _engine_scores(chunks, query, BinaryQuantizationConfig(always_ram=True))
    assert bits == pytest.approx(binary(chunks) @ binary(query))


def _engine_scores(chunks: np.ndarray, query: np.ndarray, config: object) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        params = EdgeVectorParams(size=32, distance=Distance.Cosine, quantization_config=config)  # type: ignore[arg-type]
        optimizers = EdgeOptimizersConfig(indexing_threshold=1)
        shard = EdgeShard.create(folder, EdgeConfig(vectors={"": params}, optimizers=optimizers))
        points = [Point(id=row + 1, vector=each.tolist(), payload={}) for row, each in enumerate(chunks)]
        shard.update(UpdateOperation.upsert_points(points))
        shard.optimize()
        params_of_search = SearchParams(hnsw_ef=4000, quantization=QuantizationSearchParams(rescore=False))
        hits = shard.query(
            QueryRequest(limit=len(chunks), query=Query.Nearest(query.tolist()), params=params_of_search)
        )
        shard.close()
    scores = np.full(len(chunks), np.nan)
    for hit in hits:
        scores[int(hit.id) - 1] = hit.score
    return scores
