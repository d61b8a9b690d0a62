"""Conditions on payloads, as they are typed and as they are matched."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from qdrant_edge import Distance, EdgeConfig, EdgeShard, EdgeVectorParams, Point, Query, QueryRequest, UpdateOperation

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.filters import as_edge, as_json, read_filter, unknown_key

PAYLOADS: list[dict[str, Any]] = [
    {"n": 3, "word": "a", "yes": True, "list": ["x", "y"], "in": {"side": 1.5, "dotted.key": "v"}, "größe": "L"},
    {"n": "3", "word": "a,b", "yes": "true", "list": [], "in": {"side": 2}, "items": [{"k": 1}, {"k": 2}]},
    {"n": 3.0, "word": "b", "yes": False, "list": "x", "large": 2**60 + 1},
    {"n": -3, "word": "", "yes": 1, "in": [{"side": 1.5}], "large": 2**60},
    {},
]
CASES: list[tuple[Any, list[int]]] = [
    ("n=3", [0, 1, 2]),
    ({"n": 3}, [0, 2]),
    ({"n": "3"}, [1]),
    ('n="3"', [1]),
    ("n=-3", [3]),
    ("n=3,-3", [0, 1, 2, 3]),
    ("word=a", [0]),
    ('word="a,b"', [1]),
    ("word=a,b", [0, 2]),
    ("yes=true", [0, 1]),
    ("yes=FALSE", [2]),
    ({"yes": True}, [0]),
    ({"yes": 1}, [3]),
    ("list=x", [0, 2]),
    ("in.side=1.5", [0]),
    ("in.side=2", [1]),
    ("in[].side=1.5", [3]),
    ("items[].k=2", [1]),
    ('in."dotted.key"=v', [0]),
    ("größe=L", [0]),
    (f"large={2**60}", [3]),
    (["n=3", "word=b"], [2]),
    ({"word": ["a", "b"], "n": 3}, [0, 2]),
    ("word=nothing", []),
]


@pytest.fixture(scope="module")
def shard() -> Iterator[EdgeShard]:
    with tempfile.TemporaryDirectory() as folder:
        shard = EdgeShard.create(folder, EdgeConfig(vectors=EdgeVectorParams(size=2, distance=Distance.Cosine)))
        points = [
            Point(id=str(uuid.UUID(int=number)), vector=[1.0, float(number)], payload=payload)
            for number, payload in enumerate(PAYLOADS)
        ]
        shard.update(UpdateOperation.upsert_points(points))
        yield shard
        shard.close()


@pytest.mark.parametrize(("given", "expected"), CASES, ids=lambda value: str(value))
def test_the_engine_and_plain_payloads_agree(shard: EdgeShard, given: Any, expected: list[int]) -> None:
    conditions = read_filter(given)
    plain = [
        number for number, payload in enumerate(PAYLOADS) if all(condition.matches(payload) for condition in conditions)
    ]
    found = shard.query(QueryRequest(query=Query.Nearest([1.0, 0.0]), limit=9, filter=as_edge(conditions)))
    engine = sorted(uuid.UUID(str(hit.id)).int for hit in found)
    assert (plain, engine) == (expected, expected)


def test_the_filter_of_the_rest_protocol_has_a_choice_for_each_type() -> None:
    assert as_json(read_filter("page=3,x")) == {
        "must": [
            {"should": [{"key": "page", "match": {"any": ["3", "x"]}}, {"key": "page", "range": {"gte": 3, "lte": 3}}]}
        ]
    }
    assert as_json(()) is None


@pytest.mark.parametrize(
    "given", ["page", "=3", "page=", "page=,", "a..b=1", ".a=1", 'a"b=1', 'a="b', [3], {"a": None}, {"a": []}, {3: "a"}]
)
def test_what_is_no_condition_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="filter"):
        read_filter(given)


def test_an_unknown_key_is_answered_with_the_likeliest_and_with_nothing_that_steers_a_terminal() -> None:
    (condition,) = read_filter("sorce=x")
    payloads = [{"metadata": {"source": "a", "\x1b[2Jevil": 1, **{f"key{number}": 1 for number in range(30)}}}]
    message = str(unknown_key(condition, payloads))
    assert "Did you mean source?" in message
    assert "\x1b" not in message
    assert "and 12 more" in message


def test_numpy_numbers_of_python_users_are_numbers() -> None:
    (condition,) = read_filter({"n": np.float64(3)})
    assert condition.matches({"n": 3})
