"""Progress, summary, event log and report of a run; two runs compared."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.report.added import add_exports
from ultimate_embedder.report.event_log import EventLog
from ultimate_embedder.report.html import try_report, write_report
from ultimate_embedder.report.listener import Listener
from ultimate_embedder.report.progress import make_progress
from ultimate_embedder.report.summary import SummaryBuilder
from ultimate_embedder.report.table import print_summary
from ultimate_embedder.summary import CollectionSummary, RunSummary

if TYPE_CHECKING:
    from ultimate_embedder.report.compare import Comparison, compare_outputs, comparison_lines, write_comparison_page
    from ultimate_embedder.report.evaluation import evaluation_lines
    from ultimate_embedder.report.html.evaluation import write_evaluation_page

__all__ = [
    "CollectionSummary",
    "Comparison",
    "EventLog",
    "Listener",
    "RunSummary",
    "SummaryBuilder",
    "add_exports",
    "compare_outputs",
    "comparison_lines",
    "evaluation_lines",
    "make_progress",
    "print_summary",
    "try_report",
    "write_comparison_page",
    "write_evaluation_page",
    "write_report",
]

# imported on first use: a run needs nothing of it
_MODULES = {
    "Comparison": "compare",
    "compare_outputs": "compare",
    "comparison_lines": "compare",
    "evaluation_lines": "evaluation",
    "write_comparison_page": "compare",
    "write_evaluation_page": "html.evaluation",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"ultimate_embedder.report.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
