"""Progress, summary, event log and report of a run."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.report.added import add_exports
from ultimate_embedder.report.event_log import EventLog
from ultimate_embedder.report.html import CSS as REPORT_CSS
from ultimate_embedder.report.html import report_page, try_report, write_report
from ultimate_embedder.report.listener import Listener
from ultimate_embedder.report.progress import make_progress
from ultimate_embedder.report.summary import SummaryBuilder
from ultimate_embedder.report.table import print_summary
from ultimate_embedder.summary import CollectionSummary, RunSummary

if TYPE_CHECKING:
    from ultimate_embedder.report.html.live_page import LivePage, LiveParts
    from ultimate_embedder.report.metrics import CONTENT_TYPE, prometheus_text

__all__ = [
    "CONTENT_TYPE",
    "REPORT_CSS",
    "CollectionSummary",
    "EventLog",
    "Listener",
    "LivePage",
    "LiveParts",
    "RunSummary",
    "SummaryBuilder",
    "add_exports",
    "make_progress",
    "print_summary",
    "prometheus_text",
    "report_page",
    "try_report",
    "write_report",
]

# imported on first use: most runs need none of these
_MODULES = {
    "CONTENT_TYPE": "metrics",
    "LivePage": "html.live_page",
    "LiveParts": "html.live_page",
    "prometheus_text": "metrics",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"ultimate_embedder.report.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
