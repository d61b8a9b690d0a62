"""Two outputs of the same chunks, on the same queries: what would another model do to this search?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ultimate_embedder.find.evaluate.collection import Searched
from ultimate_embedder.find.evaluate.measure import Values, deciding
from ultimate_embedder.find.evaluate.result import Against, Compared, QueryChange, Statement
from ultimate_embedder.find.evaluate.statistics import compare
from ultimate_embedder.find.evaluate.table import make_rows

MOST_CHANGES = 5
LEAST_CHANGE = 0.01
LONGEST_QUERY = 120


def compare_outputs(here: Searched, there: Searched, seed: int) -> Against:
    """Compare every way of the other output with the default way of this one, and both defaults query by query."""
    base = deciding(here.measured.values[here.default])
    other = deciding(there.measured.values[there.default])
    (change,) = compare(other[:, None], base, seed)
    order = np.argsort(other - base, kind="stable")
    key = "\0here"  # the name of a way may be the same in both
    values: Values = {**there.measured.values, key: here.measured.values[here.default]}
    rows = make_rows(there.measured.ways, values, seed, baseline=key)
    renamed = [
        row.model_copy(update={"compared": row.compared.model_copy(update={"to": f"{here.default} here"})})
        if row.compared is not None and row.compared.to == key
        else row
        for row in rows
    ]
    return Against(
        output=str(there.output.folder),
        collection=there.collection.name,
        chunks=there.task.documents.chunks,
        rows=renamed,
        here=here.default,
        there=there.default,
        change=Compared.of(f"{here.default} here", change),
        worse=list(_changes(order, base, other, here, sign=-1)),
        better=list(_changes(order[::-1], base, other, here, sign=1)),
    )


def _changes(
    order: np.ndarray, base: np.ndarray, other: np.ndarray, here: Searched, sign: int
) -> Iterator[QueryChange]:
    for query in order[:MOST_CHANGES]:
        if sign * (other[query] - base[query]) >= LEAST_CHANGE:
            text = here.task.texts[query]
            shown = text if len(text) <= LONGEST_QUERY else f"{text[:LONGEST_QUERY]}..."
            yield QueryChange(id=here.task.ids[query], text=shown, here=float(base[query]), there=float(other[query]))


def about_other(found: Against) -> Statement:
    """What the other output would do to the search, in words."""
    change = found.change
    counts = f"{change.better} queries better, {change.worse} worse, {change.equal} equal"
    there = next(row.ndcg for row in found.rows if row.name == found.there)
    here = there - change.difference
    figures = f"nDCG@10 {there:.3f} there, {here:.3f} here with {found.here}{change.evidence}"
    if change.significant:
        told = "finds more" if change.difference > 0 else "finds less"
    else:
        told = "differs by no more than chance explains"
    words = f"{found.output} ({found.there}) {told}: {figures}; {counts}"
    return Statement(about="against", words=words)
