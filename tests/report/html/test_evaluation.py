"""Evaluations on a page: every number is one of the result, and text from outside is escaped."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.report.html.conftest import HOSTILE, Page
from ultimate_embedder.find import Evaluation
from ultimate_embedder.report import evaluation_lines
from ultimate_embedder.report.html.evaluation import evaluation_sections, make_evaluation_page


def _row(name: str, kind: str, value: float, compared: bool = True) -> dict[str, Any]:
    difference = {"to": "good", "difference": value - 0.5, "interval": [-0.02, 0.03], "p": 0.2, "p_corrected": 0.4}
    measures = dict.fromkeys(("ndcg@10", "recall@100", "mrr@10", "map"), value)
    spans = {measure: [value - 0.1, value + 0.1] for measure in measures}
    more = {"compared": difference if compared else None, "bytes_per_chunk": 1536}
    return {"name": name, "kind": kind, **measures, "interval": spans, **more}


@pytest.fixture
def found() -> Evaluation:
    rows = [_row("good", "model", 0.5, compared=False), _row(HOSTILE, "model", 0.41), _row("zscore", "fusion", 0.52)]
    rows += [_row("good, binary", "quantized", 0.3), _row("zscore, best 100 in perfect order", "ceiling", 0.9, False)]
    said = [{"about": "advice", "words": f"take {HOSTILE}", "command": "search --using good"}]
    change = {"to": "zscore here", "difference": 0.1, "interval": [0.0, 0.2], "p": 0.01}
    query = {"id": "q", "text": HOSTILE, "here": 0.25, "there": 1.0}
    return Evaluation.model_validate(
        {
            "collection": HOSTILE,
            "chunks": 30,
            "documents": 30,
            "queries": HOSTILE,
            "matched": {"queries": 5, "judgements": 31, "relevant": 30},
            "rows": rows,
            "best_model": "good",
            "default": "zscore",
            "verdict": said,
            "notes": [HOSTILE],
            "tuned": {
                "method": "zscore", "split": "query", "tuned_on": 3, "tested_on": 2, "weights": {"good": 1.0},
                "weights_before": {"good": 1.0}, "rows": [_row("zscore, tuned weights", "fusion", 0.6)],
            },
            "against": {
                "output": HOSTILE, "collection": "docs", "chunks": 30, "rows": [_row("other", "model", 0.7)],
                "here": "zscore", "there": "other", "change": change, "better": [query],
            },
        }
    )  # fmt: skip


def test_every_number_is_one_of_the_result(found: Evaluation) -> None:
    page = Page(make_evaluation_page(found))
    result = {"evaluations": [found.as_dict()]}
    assert len(page.values) > 40
    for key, value, shown in page.values:
        wanted: Any = result
        for part in key.split("."):
            wanted = wanted[int(part)] if isinstance(wanted, list) else wanted[part]
        assert value == str(wanted)
        digits = shown.rstrip("*").lstrip("+<").replace(",", "")
        assert float(digits) == pytest.approx(float(wanted), abs=5.1e-4)


def test_nothing_from_outside_is_markup(found: Evaluation) -> None:
    page = Page(make_evaluation_page(found))
    assert "script" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.words.count("<script src=") >= 5


def test_a_picture_has_a_label_for_each_way(found: Evaluation) -> None:
    labels = [value for name, value in Page(make_evaluation_page(found)).attributes if name == "aria-label"]
    assert "zscore: nDCG@10 0.520, from 0.420 to 0.620" in labels
    assert len(labels) == 4  # what a perfect reranker could reach is only in a table


def test_an_evaluation_of_other_vectors_is_marked(found: Evaluation) -> None:
    ((_, _, fresh),) = evaluation_sections([found])
    ((_, _, stale),) = evaluation_sections([found], stale=[found.collection])
    assert "have changed since" not in fresh
    assert "have changed since" in stale


def test_the_lines_of_the_terminal_have_the_same(found: Evaluation) -> None:
    lines = evaluation_lines(found)
    assert any(line.split()[:3] == ["zscore", "fusion", "0.520"] for line in lines)
    assert any("better there: 0.25 -> 1.00" in line for line in lines)
    assert any(line.startswith("note: ") for line in lines)


@pytest.mark.parametrize(
    "change",
    [{"ndcg@10": 1e300}, {"map": float("nan")}, {"interval": {"ndcg@10": [5, -1]}}, {"name": 7}, {"kind": None}],
    ids=str,
)
def test_a_result_that_cannot_be_is_not_drawn(found: Evaluation, change: dict[str, Any]) -> None:
    values = found.as_dict()
    values["rows"][0] |= change
    with pytest.raises(ValidationError):
        Evaluation.model_validate(values)
