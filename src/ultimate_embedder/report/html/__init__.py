"""`report.html`: one self-contained page about a run, from its summary and its event log."""

from ultimate_embedder.report.html.style import CSS
from ultimate_embedder.report.html.write import report_page, try_report, write_report

__all__ = ["CSS", "report_page", "try_report", "write_report"]
