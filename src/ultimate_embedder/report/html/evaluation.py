"""Evaluations on a page: a dot and a bar for each way to search, a table, and what the figures say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ultimate_embedder.errors import OutputError
from ultimate_embedder.files import atomic_file
from ultimate_embedder.find import Evaluation, EvaluationRow
from ultimate_embedder.report.html.frame import frame
from ultimate_embedder.report.html.svg import HEIGHT, WIDTH, ticks
from ultimate_embedder.report.html.words import marked, number, pairs, table, text
from ultimate_embedder.terminal import valid_unicode

DECIDING = "ndcg@10"
LEGEND = (
    ("one model", "h0", ("model",)),
    ("fusion of models", "h1", ("fusion", "vector_fusion")),
    ("with sparse vectors", "h2", ("sparse", "hybrid")),
    ("reranked", "host", ("reranked",)),
    ("smaller vectors", "h3", ("matryoshka", "quantized")),
)
HUES = {kind: hue for _, hue, among in LEGEND for kind in among}
MEASURES = (("ndcg@10", "nDCG@10"), ("recall@100", "recall@100"), ("mrr@10", "MRR@10"), ("map", "MAP"))
MARGIN = 0.05  # of the width, left and right of what is drawn


def evaluation_sections(found: Sequence[Evaluation], stale: Sequence[str] = ()) -> Iterator[tuple[str, str, str]]:
    """A section for each collection that was evaluated; `stale` are those whose points have changed since."""
    for index, each in enumerate(found):
        key = f"evaluations.{index}"
        title = "Search quality" if len(found) == 1 else f"Search quality: {each.collection}"
        old = "The vectors have changed since: run evaluate again." if each.collection in stale else ""
        warning = f'<p class="broken">{old}</p>' if old else ""
        yield title, "nDCG@10 of each way to search: mean and 95 % interval.", warning + _section(each, key)


def write_evaluation_page(found: Evaluation, path: Path) -> None:
    """Write a page about one evaluation to a file."""
    page = make_evaluation_page(found)
    try:
        with atomic_file(path) as file:
            file.write(valid_unicode(page).encode())
    except OSError as error:
        raise OutputError(f"--html {path} cannot be written: {error.strerror}.") from error


def make_evaluation_page(found: Evaluation) -> str:
    """A page about one evaluation."""
    title = f"What finds best in {found.collection}"
    about = f"ultimate-embedder {found.program_version}, {found.evaluated_at.replace('T', ' ')[:16]} UTC"
    header = f"<header><p><small>{text(about)}</small></p><h1>{text(title)}</h1></header>"
    return frame(title, header, evaluation_sections([found]))


def _section(found: Evaluation, key: str) -> str:
    matched = found.matched
    counts = [
        ("queries", number(matched.queries, f"{key}.matched.queries")),
        ("judgements", number(matched.judgements, f"{key}.matched.judgements")),
        ("chunks", number(found.chunks, f"{key}.chunks")),
        ("documents", number(found.documents, f"{key}.documents")),
    ]
    where = [("queries from", text(found.queries)), ("judgements from", text(found.qrels))]
    said = "".join(
        f'<li class="note"><span class="tag">{text(each.about.capitalize())}</span><div><p>'
        f"{text(each.words)}</p>{f'<p class=change>{text(each.command)}</p>' if each.command else ''}</div></li>"
        for each in found.verdict
    )
    shown = [(row, f"{key}.rows.{index}") for index, row in enumerate(found.rows) if row.kind != "ceiling"]
    ceilings = [(row, f"{key}.rows.{index}") for index, row in enumerate(found.rows) if row.kind == "ceiling"]
    notes = "".join(f'<p class="soft">{text(note)}</p>' for note in found.notes)
    return (
        f'{pairs(counts, "top")}<ul class="items">{said}</ul>{_dots([row for row, _ in shown], found.best_model)}'
        f"{_folded('All figures', _table(shown), open_=True)}"
        f"{_folded('What a perfect reranker could reach', _table(ceilings))}"
        f"{_more(found, key)}{pairs(where)}{notes}"
    )


def _dots(rows: Sequence[EvaluationRow], best: str | None) -> str:
    """A dot at the mean and a bar over the interval of each row, all on one scale."""
    if not rows:
        return ""
    spans = [row.interval.get(DECIDING, (row.ndcg, row.ndcg)) for row in rows]
    low, high = min(span[0] for span in spans), max(span[1] for span in spans)
    margin = (high - low or 0.1) * MARGIN
    low, high = max(0.0, low - margin), min(1.0, high + margin)
    line = next((row.ndcg for row in rows if row.name == best), None)
    drawn = "".join(_dot(row, span, low, high, line) for row, span in zip(rows, spans, strict=True))
    marks = [at for at in ticks(high, 12) if low <= at <= high]
    words = "".join(f'<span style="left:{(at - low) / (high - low):.2%}">{at:g}</span>' for at in marks)
    kinds = {row.kind for row in rows}
    legend = "".join(
        f'<span><b class="{hue}"></b>{name}</span>' for name, hue, among in LEGEND if not kinds.isdisjoint(among)
    )
    dashed = f"<span>dashed: {text(best)}, the best model</span>" if line is not None else ""
    return (
        f'<div class="whiskers">{drawn}<b></b><div class="axis" aria-hidden="true">{words}</div><b></b></div>'
        f'<p class="legend">{legend}{dashed}</p>'
    )


def _dot(row: EvaluationRow, span: tuple[float, float], low: float, high: float, line: float | None) -> str:
    def x(value: float) -> str:
        return f"{(value - low) / (high - low) * WIDTH:.1f}"

    middle = HEIGHT // 2
    base = f'<path class="ceiling" d="M{x(line)} 0V{HEIGHT}"/>' if line is not None else ""
    label = f"{row.name}: nDCG@10 {row.ndcg:.3f}, from {span[0]:.3f} to {span[1]:.3f}"
    return (
        f"<span>{text(row.name)}</span>"
        f'<div class="plot"><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)}">{base}<path class="range {HUES.get(row.kind, "")}" '
        f'd="M{x(span[0])} {middle}H{x(span[1])}"/><path class="dot {HUES.get(row.kind, "")}" '
        f'd="M{x(row.ndcg)} {middle}h0"/></svg></div><i>{row.ndcg:.3f}</i>'
    )


def _table(rows: Sequence[tuple[EvaluationRow, str]]) -> str:
    cells = [_cells(row, key) for row, key in rows]
    headings = ["way", *(f"#{name}" for _, name in MEASURES), "#difference", "#p", "#bytes"]
    return table(headings, cells) if cells else ""


def _cells(row: EvaluationRow, key: str) -> list[str]:
    name = (
        f"{text(row.name)}<small>{text(row.kind.replace('_', ' '))}{text(f', {row.note}' if row.note else '')}</small>"
    )
    figures = [number(row.value(measure), f"{key}.{measure}", 3) for measure, _ in MEASURES]
    difference = p = ""
    if row.compared is not None:
        at = f"{key}.compared"
        sign = "*" if row.compared.significant else ""
        difference = marked(f"{row.compared.difference:+.3f}{sign}", row.compared.difference, f"{at}.difference")
        difference += f"<small>{row.compared.interval[0]:+.3f} to {row.compared.interval[1]:+.3f}</small>"
        decisive, field = row.compared.decisive_p, "p" if row.compared.p_corrected is None else "p_corrected"
        p = marked("<0.001" if decisive < 0.001 else f"{decisive:.3f}", decisive, f"{at}.{field}")
    size = number(row.bytes_per_chunk, f"{key}.bytes_per_chunk") if row.bytes_per_chunk else "–"
    return [name, *figures, difference, p, size]


def _more(found: Evaluation, key: str) -> str:
    inner = ""
    if found.tuned is not None:
        rows = [(row, f"{key}.tuned.rows.{index}") for index, row in enumerate(found.tuned.rows)]
        title = f"Tuned weights, on the {found.tuned.tested_on} queries that they were not chosen on"
        inner += _folded(title, _table(rows))
    if found.against is not None:
        rows = [(row, f"{key}.against.rows.{index}") for index, row in enumerate(found.against.rows)]
        changes = [
            [text(each.text), f"{each.here:.3f}", f"{each.there:.3f}"]
            for each in (*found.against.worse, *found.against.better)
        ]
        queries = table(["query", "#here", "#there"], changes) if changes else ""
        inner += _folded(f"{found.against.output}, compared with {found.against.here} here", _table(rows) + queries)
    return inner


def _folded(title: str, inner: str, *, open_: bool = False) -> str:
    state = " open" if open_ else ""
    return f"<details{state}><summary>{text(title)}</summary>{inner}</details>" if inner else ""
