"""A plan: what a run will take, before it is made. Reads chunks, configs and tokenizers; computes nothing."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.estimate.options import PLAN, SESSION, PlanOptions, make_plan_options

if TYPE_CHECKING:
    from ultimate_embedder.estimate.collection import Report
    from ultimate_embedder.estimate.make import Asked, make_plan, no_report

__all__ = ["PLAN", "SESSION", "Asked", "PlanOptions", "Report", "make_plan", "make_plan_options", "no_report"]

# imported on first use: --help needs the options only
_MODULES = {"Asked": "make", "Report": "collection", "make_plan": "make", "no_report": "make"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"ultimate_embedder.estimate.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
