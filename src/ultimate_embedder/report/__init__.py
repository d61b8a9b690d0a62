"""Progress, summary, event log and report of a run."""

from ultimate_embedder.report.added import add_exports
from ultimate_embedder.report.event_log import EventLog
from ultimate_embedder.report.html import try_report, write_report
from ultimate_embedder.report.plan_table import plan_lines
from ultimate_embedder.report.progress import make_progress
from ultimate_embedder.report.summary import SummaryBuilder
from ultimate_embedder.report.table import print_summary
from ultimate_embedder.summary import CollectionSummary, RunSummary

__all__ = [
    "CollectionSummary",
    "EventLog",
    "RunSummary",
    "SummaryBuilder",
    "add_exports",
    "make_progress",
    "plan_lines",
    "print_summary",
    "try_report",
    "write_report",
]
