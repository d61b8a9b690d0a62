"""Progress, summary, event log and report of a run; two runs compared."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.report.added import add_exports
from ultimate_embedder.report.event_log import EventLog
from ultimate_embedder.report.html import try_report, write_report
from ultimate_embedder.report.progress import make_progress
from ultimate_embedder.report.summary import SummaryBuilder
from ultimate_embedder.report.table import print_summary
from ultimate_embedder.summary import CollectionSummary, RunSummary

if TYPE_CHECKING:
    from ultimate_embedder.report.compare import Comparison, compare_outputs, comparison_lines, write_comparison_page
    from ultimate_embedder.report.metrics import CONTENT_TYPE, prometheus_text
    from ultimate_embedder.report.telemetry import Telemetry, open_telemetry

__all__ = [
    "CONTENT_TYPE",
    "CollectionSummary",
    "Comparison",
    "EventLog",
    "RunSummary",
    "SummaryBuilder",
    "Telemetry",
    "add_exports",
    "compare_outputs",
    "comparison_lines",
    "make_progress",
    "open_telemetry",
    "print_summary",
    "prometheus_text",
    "try_report",
    "write_comparison_page",
    "write_report",
]

# imported on first use: most runs need none of these
_MODULES = {
    "CONTENT_TYPE": "metrics",
    "Comparison": "compare",
    "Telemetry": "telemetry",
    "compare_outputs": "compare",
    "comparison_lines": "compare",
    "open_telemetry": "telemetry",
    "prometheus_text": "metrics",
    "write_comparison_page": "compare",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"ultimate_embedder.report.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
