"""The plan of a run beside what came of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.report.html.conftest import Page
from ultimate_embedder.report.html.plan import draw_plan


def figure(**fields: Any) -> SimpleNamespace:
    known = {"collection": None, "model": None, "device": None, "planned_low": None, "planned_high": None, "basis": ""}
    return SimpleNamespace(**{**known, **fields})


def drawn(plan: Any) -> Page:
    return Page(draw_plan(SimpleNamespace(plan=plan)))  # type: ignore[arg-type]


def test_a_run_without_a_plan_has_no_section() -> None:
    assert drawn(None).words == ""


def test_figures_are_shown_with_what_they_turned_out_to_be() -> None:
    figures = [
        figure(what="tokens", unit="tokens", collection="docs", model="<m>", planned=1200, actual=1200, off=0.0),
        figure(what="peak memory", unit="bytes", device="cuda:0", planned=11e9, actual=10e9, off=0.1),
        figure(
            what="run",
            unit="seconds",
            planned=90,
            planned_low=60,
            planned_high=135,
            actual=120,
            off=-0.25,
            basis="history",
        ),
    ]
    plan = SimpleNamespace(
        made_at="2026-11-17T08:00:00", verdict="It fits.", same_work=True, same_devices=True, why="", figures=figures
    )
    page = drawn(plan)
    for words in (
        "It fits.",
        "1,200",
        "exact",
        "11.0 GB",
        "+10%",
        "1 min 00 s to 2 min 15 s",
        "2 min 00 s",
        "−25%",
        "<m>",
    ):
        assert words in page.words
    assert ("plan.figures.1.actual", "10000000000.0", "10.0 GB") in page.values


def test_a_plan_of_other_work_is_not_compared() -> None:
    plan = SimpleNamespace(
        made_at="",
        verdict="It fits.",
        same_work=False,
        same_devices=False,
        why="docs: its chunks have changed",
        figures=[],
    )
    assert "Nothing is compared: the plan differs from the run, docs: its chunks have changed." in drawn(plan).words
