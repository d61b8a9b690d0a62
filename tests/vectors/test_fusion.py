"""Fusion by itself: what several models' vectors become, and what similarity means then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ultimate_embedder.errors import UsageError
from ultimate_embedder.models.registry import find_spec
from ultimate_embedder.types import PassIdentity, VectorSpec
from ultimate_embedder.vectors import (
    FUSIONS,
    UNNAMED,
    Candidate,
    FusedVectors,
    Fusion,
    VectorStore,
    plan_fusion,
    shorten,
)
from ultimate_embedder.vectors.fusion import common_dim

DIMS = {"small": 24, "large": 40, "third": 32}
WEIGHTS = [(1.0, 1.0, 1.0), (0.7, 0.2, 0.1), (3.0, 1.0, 7.0), (0.001, 5.0, 0.5)]
JINA, BGE, QWEN = "jina-code-embeddings-1.5b", "bge-m3", "qwen3-embedding-0.6b"


def random_vectors(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    """Vectors of any length, as a model without normalisation gives them."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, dim)) * rng.uniform(0.1, 30, (rows, 1))).astype(np.float32)


def of_all_models(rows: int, seed: int = 0) -> list[np.ndarray]:
    return [random_vectors(rows, dim, seed + number) for number, dim in enumerate(DIMS.values())]


def fusion_of(method: str, weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Fusion:
    pairs = zip(DIMS.items(), weights, strict=True)
    return plan_fusion(method, [Candidate(name, weight, dim) for (name, dim), weight in pairs])


def averaged(*candidates: Candidate) -> Fusion:
    return plan_fusion("weighted_average", candidates)


def registered(name: str, weight: float = 1.0) -> Candidate:
    spec = find_spec(name)
    assert spec is not None
    return Candidate(spec.key, weight, spec.dim, spec.matryoshka_dims)


def cosines(query: np.ndarray, documents: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(documents, axis=1) * np.linalg.norm(query)
    return np.asarray(documents @ query / lengths)


# weights


@pytest.mark.parametrize("method", ["named", "concat"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights_sum_to_one_and_keep_their_ratio(method: str, weights: tuple[float, ...]) -> None:
    shares = [member.weight for member in fusion_of(method, weights).members]
    assert sum(shares) == pytest.approx(1)
    assert [share / shares[0] for share in shares] == pytest.approx([weight / weights[0] for weight in weights])


@pytest.mark.parametrize("method", FUSIONS)
def test_weights_that_differ_by_a_factor_are_the_same_fusion(method: str) -> None:
    one = plan_fusion(method, [Candidate("a", 1, 8), Candidate("b", 3, 8)])
    assert one == plan_fusion(method, [Candidate("a", 0.25, 8), Candidate("b", 0.75, 8)])


# one model


@pytest.mark.parametrize("method", FUSIONS)
def test_the_vectors_of_one_model_are_not_touched_and_have_no_name(method: str) -> None:
    vectors = random_vectors(5, 24)
    alone = plan_fusion(method, [Candidate("small", 0.3, 24)])
    assert alone.vectors == (VectorSpec(UNNAMED, 24),)
    assert np.array_equal(alone.fuse([vectors])[UNNAMED], vectors)


def test_the_similarity_of_one_model_is_the_cosine() -> None:
    alone = plan_fusion("named", [Candidate("small", 0.3, 24)])
    query, documents = random_vectors(1, 24, seed=1), random_vectors(50, 24)
    found = alone.similarity(alone.fuse([query]), alone.fuse([documents]))
    np.testing.assert_allclose(found, cosines(query[0], documents), atol=1e-6)


# named


def test_named_keeps_every_vector_as_it_was() -> None:
    fusion, vectors = fusion_of("named"), of_all_models(5)
    fused = fusion.fuse(vectors)
    assert fusion.vectors == tuple(VectorSpec(name, dim) for name, dim in DIMS.items())
    assert list(fused) == list(DIMS)
    assert all(np.array_equal(fused[name], given) for name, given in zip(DIMS, vectors, strict=True))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_named_and_concat_find_the_same_similarities(weights: tuple[float, ...]) -> None:
    query, documents = of_all_models(1, seed=10), of_all_models(200)
    named, concat = (
        fusion.similarity(fusion.fuse(query), fusion.fuse(documents))
        for fusion in (fusion_of("named", weights), fusion_of("concat", weights))
    )
    np.testing.assert_allclose(named, concat, atol=1e-6)


# concat


def test_concat_is_as_long_as_all_vectors_together() -> None:
    fusion = fusion_of("concat")
    assert fusion.vectors == (VectorSpec(UNNAMED, sum(DIMS.values())),)
    assert fusion.fuse(of_all_models(5))[UNNAMED].shape == (5, sum(DIMS.values()))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_dot_product_of_concat_is_the_weighted_sum_of_cosines(weights: tuple[float, ...], seed: int) -> None:
    fusion = fusion_of("concat", weights)
    query, documents = of_all_models(1, seed=seed + 100), of_all_models(200, seed=seed)
    dots = fusion.fuse(documents)[UNNAMED] @ fusion.fuse(query)[UNNAMED][0]
    shares = [weight / sum(weights) for weight in weights]
    parts = zip(shares, query, documents, strict=True)
    np.testing.assert_allclose(dots, sum(share * cosines(one[0], many) for share, one, many in parts), atol=1e-6)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_concat_has_unit_length(weights: tuple[float, ...]) -> None:
    fused = fusion_of("concat", weights).fuse(of_all_models(50))[UNNAMED]
    np.testing.assert_allclose(np.linalg.norm(fused, axis=1), 1, atol=1e-6)


# weighted average


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.9, 0.1), (2.0, 5.0)])
def test_an_average_is_the_weighted_mean_of_unit_vectors_of_unit_length_again(weights: tuple[float, float]) -> None:
    one, other = random_vectors(50, 32, seed=1), random_vectors(50, 32, seed=2)
    fusion = averaged(Candidate("one", weights[0], 32), Candidate("other", weights[1], 32))
    (fused,) = fusion.fuse([one, other]).values()
    assert fusion.vectors == (VectorSpec(UNNAMED, 32),)
    np.testing.assert_allclose(np.linalg.norm(fused, axis=1), 1, atol=1e-6)
    mean = weights[0] * shorten(one, 32) + weights[1] * shorten(other, 32)
    np.testing.assert_allclose(fused, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-6)


def test_a_matryoshka_model_is_cut_to_the_dimension_of_the_other_and_normalised_before_the_mean() -> None:
    fusion = averaged(registered(JINA, 0.6), registered(BGE, 0.4))
    assert fusion.vectors == (VectorSpec(UNNAMED, 1024),)
    jina, bge = random_vectors(20, 1536, seed=1), random_vectors(20, 1024, seed=2)
    cut = jina[:, :1024] / np.linalg.norm(jina[:, :1024], axis=1, keepdims=True)
    mean = 0.6 * cut + 0.4 * bge / np.linalg.norm(bge, axis=1, keepdims=True)
    expected = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(fusion.fuse([jina, bge])[UNNAMED], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("names", "dim"),
    [
        ([BGE, QWEN], 1024),
        ([JINA, BGE], 1024),
        ([JINA, "jina-embeddings-v4"], 1024),
        ([QWEN, "coderankembed"], 768),
        ([JINA, BGE, QWEN, "jina-embeddings-v4"], 1024),
    ],
)
def test_known_models_share_the_largest_dimension_that_all_can_have(names: list[str], dim: int) -> None:
    assert common_dim([registered(name) for name in names]) == dim


def test_a_model_that_was_cut_already_is_not_lengthened() -> None:
    cut, whole = Candidate("cut", 1, 256, (128, 256, 512, 1024)), Candidate("whole", 1, 1024, (128, 256, 512, 1024))
    assert common_dim([cut, whole]) == 256


def test_models_without_a_common_dimension_are_refused_with_their_dimensions_and_the_way_out() -> None:
    with pytest.raises(UsageError) as caught:
        averaged(registered(BGE), registered(JINA), registered("all-minilm-l6-v2"))
    assert str(caught.value) == (
        "--fusion weighted_average needs vectors of the same dimension, and these models have none in common: "
        "bge-m3 has 1024, jina-code-embeddings-1.5b has 1536 or 128, 256, 512, 1024, all-minilm-l6-v2 has 384. "
        "Use --fusion concat or --fusion named, or other models."
    )


@pytest.mark.parametrize("method", ["named", "concat"])
def test_the_way_out_takes_any_dimensions(method: str) -> None:
    fusion = plan_fusion(method, [registered(BGE), registered("all-minilm-l6-v2")])
    assert sum(spec.dim or 0 for spec in fusion.vectors) == 1024 + 384


# cutting


@pytest.mark.parametrize("dim", [1, 7, 24, None])
def test_shortened_vectors_point_where_their_first_numbers_point(dim: int | None) -> None:
    vectors = random_vectors(20, 24)
    short = shorten(vectors, dim)
    first = vectors[:, :dim]
    assert short.dtype == np.float32
    assert short.shape == first.shape
    np.testing.assert_allclose(short, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)


# queries


@pytest.mark.parametrize("method", FUSIONS)
def test_a_query_is_fused_as_a_document_is(method: str) -> None:
    fusion = plan_fusion(method, [Candidate("one", 0.7, 32), Candidate("other", 0.3, 32)])
    vectors = [random_vectors(20, 32, seed=1), random_vectors(20, 32, seed=2)]
    documents = fusion.fuse(vectors)
    for row in range(20):
        query = fusion.fuse([each[row : row + 1] for each in vectors])
        assert {name: each.shape for name, each in query.items()} == {
            spec.name: (1, spec.dim) for spec in fusion.vectors
        }
        for name, each in query.items():
            np.testing.assert_allclose(each[0], documents[name][row], atol=1e-7)


@pytest.mark.parametrize("method", FUSIONS)
def test_a_document_is_nearest_to_itself_with_a_similarity_of_one(method: str) -> None:
    fusion = plan_fusion(method, [Candidate("one", 0.7, 32), Candidate("other", 0.3, 32)])
    vectors = [random_vectors(20, 32, seed=1), random_vectors(20, 32, seed=2)]
    documents = fusion.fuse(vectors)
    for row in range(20):
        similarity = fusion.similarity(fusion.fuse([each[row : row + 1] for each in vectors]), documents)
        assert int(similarity.argmax()) == row
        assert similarity[row] == pytest.approx(1, abs=1e-6)


# stores


KEYS = np.arange(20, dtype=np.uint64).reshape(10, 2)


def store(root: Path, model: str, dim: int = 8, *, rows: int = 10, seed: int = 0) -> VectorStore:
    """A store with the vectors of the first `rows` keys."""
    with VectorStore(root, PassIdentity(model, "r1", "d1", "float32", None, None, None)) as written:
        written.append(KEYS[:rows], random_vectors(10, dim, seed)[:rows], np.zeros(rows, bool))
    return written


def fuse_stores(stores: list[VectorStore], method: str = "concat", weights: tuple[float, ...] = (1, 1)) -> FusedVectors:
    pairs = zip(stores, weights, strict=False)
    candidates = [Candidate(each.identity.model, weight, each.dim or 0) for each, weight in pairs]
    return FusedVectors(stores, plan_fusion(method, candidates))


@pytest.fixture
def stores(tmp_path: Path) -> list[VectorStore]:
    return [store(tmp_path, "one", seed=1), store(tmp_path, "other", seed=2)]


def test_fused_vectors_are_read_by_key_in_any_order(stores: list[VectorStore]) -> None:
    vectors, order = fuse_stores(stores), np.random.default_rng(3).permutation(10)
    whole = vectors.fusion.fuse([random_vectors(10, 8, seed=1), random_vectors(10, 8, seed=2)])
    assert vectors.vectors == (VectorSpec(UNNAMED, 16),)
    assert np.array_equal(vectors.read(KEYS[order])[UNNAMED], whole[UNNAMED][order])


def test_a_key_counts_when_every_model_has_it(tmp_path: Path) -> None:
    vectors = fuse_stores([store(tmp_path, "one", rows=7), store(tmp_path, "other", rows=4)])
    assert vectors.holds(KEYS).tolist() == [True] * 4 + [False] * 6


def test_models_that_left_keys_without_a_vector_are_named(tmp_path: Path) -> None:
    vectors = fuse_stores([store(tmp_path, "one"), store(tmp_path, "other", rows=4)])
    ((model, mask),) = vectors.without(KEYS)
    assert (model, mask.tolist()) == ("other", [False] * 4 + [True] * 6)
    assert vectors.without(KEYS[:4]) == []


def test_the_identity_stays_when_nothing_changes(stores: list[VectorStore], tmp_path: Path) -> None:
    reopened = [VectorStore(tmp_path, each.identity, read_only=True) for each in stores]
    assert (
        fuse_stores(reopened).identity
        == fuse_stores(stores).identity
        == fuse_stores(stores, weights=(0.5, 0.5)).identity
    )


def test_the_identity_of_the_same_vectors_in_another_place_is_the_same(tmp_path: Path) -> None:
    here, there = (
        fuse_stores([store(tmp_path / place, "one", seed=1), store(tmp_path / place, "other", seed=2)])
        for place in ("here", "there")
    )
    assert here.identity == there.identity


@pytest.mark.parametrize("weights", [(2, 1), (1, 2), (1, 1.001)])
def test_the_identity_changes_with_the_weights(stores: list[VectorStore], weights: tuple[float, ...]) -> None:
    assert fuse_stores(stores, weights=weights).identity != fuse_stores(stores).identity


def test_the_identity_changes_with_the_method(stores: list[VectorStore]) -> None:
    assert len({fuse_stores(stores, method).identity for method in FUSIONS}) == len(FUSIONS)


def test_the_identity_changes_with_the_order_of_the_models(stores: list[VectorStore]) -> None:
    assert fuse_stores(stores).identity != fuse_stores(stores[::-1]).identity


@pytest.mark.parametrize("changed", [0, 1])
def test_the_identity_changes_with_the_contents_of_any_store(
    stores: list[VectorStore], tmp_path: Path, changed: int
) -> None:
    others = list(stores)
    others[changed] = store(tmp_path / "elsewhere", stores[changed].identity.model, seed=9)
    assert fuse_stores(others).identity != fuse_stores(stores).identity


def test_the_identity_changes_when_a_store_grows(tmp_path: Path) -> None:
    both = [store(tmp_path, "one", rows=9), store(tmp_path, "other")]
    before = fuse_stores(both).identity
    with both[0] as growing:
        growing.append(KEYS[9:], random_vectors(1, 8), np.zeros(1, bool))
    assert fuse_stores(both).identity != before


def test_the_method_does_not_change_the_identity_of_one_model(stores: list[VectorStore]) -> None:
    assert len({fuse_stores(stores[:1], method).identity for method in FUSIONS}) == 1
