"""A plan: what a run will take, before it is made. Reads chunks, configs and tokenizers; computes nothing."""

from typing import TYPE_CHECKING

from ultimate_embedder.estimate.options import PLAN, SESSION, PlanOptions, make_plan_options
from ultimate_embedder.late import late_names

if TYPE_CHECKING:
    from ultimate_embedder.estimate.collection import Report
    from ultimate_embedder.estimate.make import Asked, make_plan, no_report

__all__ = ["PLAN", "SESSION", "Asked", "PlanOptions", "Report", "make_plan", "make_plan_options", "no_report"]

# imported on first use: --help needs the options only
_MODULES = {"Asked": "make", "Report": "collection", "make_plan": "make", "no_report": "make"}

__getattr__ = late_names(__name__, _MODULES)
