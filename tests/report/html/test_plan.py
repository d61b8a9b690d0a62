"""The plan of a run beside what came of it."""

from __future__ import annotations

from tests.report.html.conftest import Page
from ultimate_embedder.report.html.plan import draw_plan
from ultimate_embedder.summary import PlanFigure, PlanSummary, RunSummary


def drawn(plan: PlanSummary | None) -> Page:
    return Page(draw_plan(RunSummary(plan=plan)))


def test_a_run_without_a_plan_has_no_section() -> None:
    assert drawn(None).words == ""


def test_figures_are_shown_with_what_they_turned_out_to_be() -> None:
    figures = [
        PlanFigure(what="tokens", unit="tokens", collection="docs", model="<m>", planned=1200, actual=1200, off=0.0),
        PlanFigure(what="peak memory allocated", unit="bytes", device="cuda:0", planned=11e9, actual=10e9, off=0.1),
        PlanFigure(what="run", unit="seconds", planned=90, planned_low=60, planned_high=135, actual=120, off=-0.25),
    ]
    page = drawn(PlanSummary(made_at="2026-11-17T08:00:00", verdict="It fits.", same_work=True, figures=figures))
    for words in ("It fits.", "1,200", "exact", "11.0 GB", "+10%", "1 min 00 s to 2 min 15 s", "2 min 00 s", "−25%"):
        assert words in page.words
    assert "<m>" in page.words
    assert ("plan.figures.1.actual", "10000000000.0", "10.0 GB") in page.values


def test_a_plan_of_other_work_is_not_compared() -> None:
    why = "docs: its chunks have changed"
    plan = PlanSummary(made_at="", verdict="It fits.", same_work=False, same_devices=False, why=why)
    assert "Nothing is compared: the plan differs from the run, docs: its chunks have changed." in drawn(plan).words
