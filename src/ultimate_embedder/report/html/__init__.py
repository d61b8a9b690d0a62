"""`report.html`: one self-contained page about a run, from its summary and its event log."""

from ultimate_embedder.report.html.write import try_report, write_report

__all__ = ["try_report", "write_report"]
