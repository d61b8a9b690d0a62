"""What was planned beside what came, if a plan for the same work was made before the run."""

from __future__ import annotations

from ultimate_embedder.summary import RunSummary


def draw_plan(summary: RunSummary) -> str:
    """Nothing where there was no plan."""
    return ""
