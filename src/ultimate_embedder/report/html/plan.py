"""What was planned beside what came, if a plan for the same work was made before the run."""

from __future__ import annotations

from ultimate_embedder.report.html.words import duration, marked, share, size, table, text
from ultimate_embedder.summary import PlanFigure, RunSummary

MOST_FIGURES = 100


def draw_plan(summary: RunSummary) -> str:
    """Each figure of the plan, what it turned out to be, and how far off it was; nothing where there was no plan."""
    plan = summary.plan
    if plan is None:
        return ""
    made = f"<p>{text(plan.verdict)} <small>planned {text(str(plan.made_at).replace('T', ' ')[:16])}</small></p>"
    if not plan.same_work or not plan.same_devices:
        what = "Nothing is compared" if not plan.same_work else "Memory and time are not compared"
        made += f"<p>{what}: the plan differs from the run, {text(plan.why)}.</p>"
    rows = [_row(each, f"plan.figures.{index}") for index, each in enumerate(plan.figures[:MOST_FIGURES])]
    if not rows:
        return made
    more = len(plan.figures) - MOST_FIGURES
    rest = f"<p>And {more:,} more; summary.json lists all.</p>" if more > 0 else ""
    return made + table(["figure", "of", "#planned", "#actual", "#planned / actual"], rows) + rest


def _row(figure: PlanFigure, key: str) -> list[str]:
    where = [each for each in (figure.collection, figure.model, figure.device) if each]
    planned = marked(_in_words(figure.planned, figure.unit), figure.planned, f"{key}.planned")
    if figure.planned_low is not None and figure.planned_high is not None:
        low, high = (_in_words(each, figure.unit) for each in (figure.planned_low, figure.planned_high))
        planned = marked(f"{low} to {high}", figure.planned, f"{key}.planned")
    return [
        f"{text(figure.what)}<small>{text(figure.basis)}</small>",
        f"{text(where[0] if where else 'the run')}<small>{text(', '.join(where[1:]))}</small>",
        planned,
        marked(_in_words(figure.actual, figure.unit), figure.actual, f"{key}.actual"),
        "" if figure.off is None else marked(_off(figure.off), figure.off, f"{key}.off"),
    ]


def _in_words(value: float, unit: str) -> str:
    return size(value) if unit == "bytes" else duration(value) if unit == "seconds" else f"{value:,.0f}"


def _off(part: float) -> str:
    return "exact" if part == 0 else f"{'+' if part > 0 else '−'}{share(abs(part))}"
