"""An evaluation as lines of text: a table, what it says, and what to know about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ultimate_embedder.find import Evaluation, EvaluationRow
from ultimate_embedder.report.table import aligned
from ultimate_embedder.terminal import printable

GROUPS = (
    ("", ("model", "vector_fusion", "fusion", "sparse", "hybrid", "reranked")),
    ("smaller vectors, compared with the whole ones of the same model", ("matryoshka", "quantized")),
)
HEADINGS = ("name", "kind", "ndcg@10", "95 %", "recall@100", "mrr@10", "map", "difference", "p", "bytes")
TEXT_COLUMNS = 2


def evaluation_lines(found: Evaluation) -> list[str]:
    """The table of an evaluation, its verdict and notes."""
    lines = [_about(found)]
    for title, kinds in GROUPS:
        rows = [row for row in found.rows if row.kind in kinds]
        if rows:
            lines += ["", *([title] if title else []), *_table(rows)]
    lines += ["", *_statements(found)]
    if found.tuned is not None:
        where = f"on the {found.tuned.tested_on} queries that weights were not tuned on"
        lines += ["", where, *_table(found.tuned.rows)]
    if found.against is not None:
        lines += ["", f"{found.against.output}, compared with {found.against.here} here"]
        lines += _table([row for row in found.against.rows if row.kind in GROUPS[0][1]])
        lines += list(_changes(found))
    return [*lines, "", *(f"note: {note}" for note in found.notes)] if found.notes else lines


def _about(found: Evaluation) -> str:
    counts = f"{found.matched.queries:,} queries, {found.matched.judgements:,} judgements, {found.chunks:,} chunks"
    documents = f" of {found.documents:,} documents" if found.documents < found.chunks else ""
    against = f"; differences are to {found.best_model}" if found.best_model else ""
    return f"{found.collection}: {counts}{documents}{against}; p is corrected for the number of comparisons"


def _table(rows: Sequence[EvaluationRow]) -> list[str]:
    cells = [[printable(cell) for cell in _cells(row)] for row in rows]
    return aligned([list(HEADINGS), *cells], TEXT_COLUMNS)


def _cells(row: EvaluationRow) -> list[str]:
    low, high = row.interval.get("ndcg@10", (row.ndcg, row.ndcg))
    difference = p = ""
    if row.compared is not None:
        corrected = row.compared.decisive_p
        difference = f"{row.compared.difference:+.3f}{'*' if row.compared.significant else ' '}"
        p = "<.001" if corrected < 0.001 else f"{corrected:.3f}"
    figures = [f"{row.ndcg:.3f}", f"{low:.3f}-{high:.3f}", f"{row.recall:.3f}", f"{row.mrr:.3f}", f"{row.map:.3f}"]
    size = f"{row.bytes_per_chunk:,}" if row.bytes_per_chunk else "-"
    return [row.name, row.kind.replace("_", " "), *figures, difference, p, size]


def _statements(found: Evaluation) -> Iterator[str]:
    for each in found.verdict:
        yield f"{each.about}: {each.words}"
        if each.command:
            yield f"    {each.command}"


def _changes(found: Evaluation) -> Iterator[str]:
    if found.against is None:
        return
    for title, changes in (("worse there", found.against.worse), ("better there", found.against.better)):
        for each in changes:
            yield f"{title}: {each.here:.2f} -> {each.there:.2f}  {each.text} ({each.id})"
