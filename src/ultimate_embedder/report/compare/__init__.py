"""`compare`: two outputs side by side, as a table, JSON and a page."""

from ultimate_embedder.report.compare.compare import compare_outputs
from ultimate_embedder.report.compare.page import write_comparison_page
from ultimate_embedder.report.compare.result import Comparison
from ultimate_embedder.report.compare.table import comparison_lines

__all__ = ["Comparison", "compare_outputs", "comparison_lines", "write_comparison_page"]
