"""Progress, summary, event log and report of a run; two runs compared."""

from typing import TYPE_CHECKING

from ultimate_embedder.late import late_names
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
    from ultimate_embedder.report.compare import Comparison, compare_outputs, comparison_lines, write_comparison_page
    from ultimate_embedder.report.evaluation import evaluation_lines
    from ultimate_embedder.report.hits import hit_lines, time_line
    from ultimate_embedder.report.html.evaluation import write_evaluation_page
    from ultimate_embedder.report.html.live_page import LivePage, LiveParts
    from ultimate_embedder.report.metrics import CONTENT_TYPE, prometheus_text
    from ultimate_embedder.report.plan_table import plan_lines
    from ultimate_embedder.report.telemetry import Telemetry, open_telemetry

__all__ = [
    "CONTENT_TYPE",
    "REPORT_CSS",
    "CollectionSummary",
    "Comparison",
    "EventLog",
    "Listener",
    "LivePage",
    "LiveParts",
    "RunSummary",
    "SummaryBuilder",
    "Telemetry",
    "add_exports",
    "compare_outputs",
    "comparison_lines",
    "evaluation_lines",
    "hit_lines",
    "make_progress",
    "open_telemetry",
    "plan_lines",
    "print_summary",
    "prometheus_text",
    "report_page",
    "time_line",
    "try_report",
    "write_comparison_page",
    "write_evaluation_page",
    "write_report",
]

# imported on first use: most runs need none of these
_MODULES = {
    "CONTENT_TYPE": "metrics",
    "Comparison": "compare",
    "LivePage": "html.live_page",
    "LiveParts": "html.live_page",
    "Telemetry": "telemetry",
    "compare_outputs": "compare",
    "comparison_lines": "compare",
    "evaluation_lines": "evaluation",
    "hit_lines": "hits",
    "open_telemetry": "telemetry",
    "plan_lines": "plan_table",
    "prometheus_text": "metrics",
    "time_line": "hits",
    "write_comparison_page": "compare",
    "write_evaluation_page": "html.evaluation",
}

__getattr__ = late_names(__name__, _MODULES)
