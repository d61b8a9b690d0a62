"""`doctor`: what this machine can do, what stands in the way, and what to type about it."""

from ultimate_embedder.report.doctor.check import Check, Examination, State
from ultimate_embedder.report.doctor.examine import examine
from ultimate_embedder.report.doctor.place import Place
from ultimate_embedder.report.doctor.table import check_lines, totals

__all__ = ["Check", "Examination", "Place", "State", "check_lines", "examine", "totals"]
