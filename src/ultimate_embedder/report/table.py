"""The summary as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ultimate_embedder.output import PLAN_NAME
from ultimate_embedder.report.rejections import in_words
from ultimate_embedder.summary import CollectionSummary, PlanFigure, PlanSummary, RunOptions, RunSummary
from ultimate_embedder.terminal import counted, encodable, printable, show

MOST_SHOWN = 5


HEADINGS = ("collection", "status", "found", "embedded", "new", "rejected", "dims", "padding", "texts/s", "seconds")
TEXT_COLUMNS = 2  # the first columns are left-aligned, the numbers right-aligned


def print_summary(
    summary: RunSummary, summary_path: Path | None, file: IO[str] | None, last_lines: Sequence[str] = ()
) -> None:
    """Print one row per collection, then errors, warnings and paths, and `last_lines`."""
    if file is None:  # closed by the parent process
        return
    cells = (_cells(collection) for collection in summary.collections)
    rows = [list(HEADINGS), *([encodable(printable(cell), file) for cell in row] for row in cells)]
    for line in aligned(rows, TEXT_COLUMNS) if summary.collections else []:
        show(line, file)
    for line in (*_notes(summary, summary_path), *last_lines):
        show(line, file)


def aligned(rows: Sequence[Sequence[str]], text_columns: int) -> list[str]:
    """Rows of a table as lines; the first `text_columns` are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(collection: CollectionSummary) -> list[str]:
    counts = collection.chunks
    tokens = sum(each.tokens for each in collection.encoding_passes)
    padded = sum(each.padded_tokens for each in collection.encoding_passes)
    encoding = collection.seconds_by_stage["encode"]
    return [
        collection.collection,
        collection.status or "",
        f"{counts.found}",
        f"{counts.embedded}",
        f"{counts.newly_encoded}",
        f"{counts.rejected}",
        _dims(collection),
        f"{(padded / tokens - 1) * 100:.1f} %" if tokens else "-",
        f"{counts.newly_encoded / encoding:,.0f}" if tokens and encoding else "-",
        f"{collection.seconds:.1f}",
    ]


def _dims(collection: CollectionSummary) -> str:
    if collection.vectors:
        return "+".join(f"{each.dim or each.kind}" for each in collection.vectors)
    return f"{collection.dense_passes[-1].dim or '-'}" if collection.dense_passes else "-"


def _about_equal_texts(collection: CollectionSummary) -> str | None:
    """How chunks and vectors are counted, where the numbers differ."""
    counts = collection.chunks
    equal = counts.embedded - counts.distinct_texts
    if equal <= 0:  # less: a text whose chunks were all rejected by the model
        return None
    shares = "1 chunk shares" if equal == 1 else f"{equal:,} chunks share"
    both = f"{counts.embedded:,} chunks, {counted(counts.distinct_texts, 'distinct text')}"
    return f"{collection.collection}: {both}: {shares} the vector of an equal text"


def _about_truncation(collection: CollectionSummary, options: RunOptions | None) -> str:
    """How many chunks were truncated, where, and what to do about it."""
    cut = max(collection.passes, key=lambda each: each.truncated)
    limit = next((model.max_tokens for model in collection.models if model.model == cut.model), None)
    at = f"{limit:,} tokens" if limit else "the token limit"
    chunks = f"{counted(cut.truncated, 'chunk')} {'was' if cut.truncated == 1 else 'were'} truncated at {at}"
    longest = f"; the longest has {cut.longest_tokens:,}" if cut.longest_tokens else ""
    limited = options is not None and (options.max_tokens is not None or options.token_cap is not None)
    wider = "raise the limit" if limited else "choose a model with a longer limit ('ultimate-embedder models list')"
    return f"{collection.collection}: {chunks} ({cut.model}{longest}): {wider}, or use --overlong pool or split"


def about_plan(plan: PlanSummary) -> str:
    """How far off the plan was, in a line."""
    if not plan.same_work:
        return f"plan: {PLAN_NAME} is of other work ({plan.why})"
    words = [_figure_in_words(each) for each in plan.figures if each.what in ("tokens", "peak memory allocated", "run")]
    return "; ".join(["plan and actual: " + ", ".join(words), *([plan.why] if plan.why else [])])


def _figure_in_words(figure: PlanFigure) -> str:
    whose = figure.device or figure.model or figure.collection
    name = f"{figure.what} of {whose}" if whose else figure.what
    if figure.planned_low is not None and figure.planned_high is not None:
        return f"{name} {figure.planned_low:.1f} to {figure.planned_high:.1f} and {figure.actual:.1f} s"
    if figure.unit == "bytes":
        off = f" ({figure.off * 100:+.1f} %)" if figure.off is not None else ""
        return f"{name} {figure.planned / 1e6:,.1f} and {figure.actual / 1e6:,.1f} MB{off}"
    return f"{name} {figure.planned:,.0f} and {figure.actual:,.0f}"


def _notes(summary: RunSummary, summary_path: Path | None) -> list[str]:
    lines = []
    for collection in summary.collections:
        name = collection.collection
        if collection.error:
            lines.append(f"{name} {collection.status}: {collection.error}")
        groups = sorted(collection.rejected_by_reason, key=lambda group: -group.records)[:MOST_SHOWN]
        lines.extend(f"{name} rejected {in_words(group)}" for group in groups)
        if (more := collection.chunks.rejected - sum(group.records for group in groups)) > 0:
            lines.append(f"{name} rejected {more:,} more; the summary lists all")
        if shared := _about_equal_texts(collection):
            lines.append(shared)
        if collection.chunks.truncated:
            lines.append(_about_truncation(collection, summary.options))
        if collection.chunks.pooled:
            lines.append(f"{name}: {collection.chunks.pooled} chunks beyond the token limit were pooled")
        if collection.chunks.split:
            counts = f"{collection.chunks.split} chunks beyond the token limit"
            lines.append(f"{name}: {counts} were split into {collection.chunks.split_points} points")
        for facts in collection.sparse:
            if facts.empty:
                chunks = f"{counted(facts.empty, 'chunk')} {'has' if facts.empty == 1 else 'have'} no word that counts"
                lines.append(f"{name}: {chunks} for {facts.name}: {facts.name} alone never finds them")
        if collection.chunks.duplicate_ids:
            lines.append(f"{name}: {collection.chunks.duplicate_ids} duplicate ids were renamed")
        for each in collection.passes:
            if each.agreement is not None:
                cosines = f"{each.agreement.mean_cosine:.5f} on average, {each.agreement.worst_cosine:.5f} at worst"
                how = f" ({each.quantization})" if each.quantization else ""
                lines.append(f"{name}: {each.model} in {each.dtype}{how}: cosine similarity to fp32 {cosines}")
        lines.extend(f"{name} → {export.path}" for export in collection.exports)
        if any(export.kind == "parquet" for export in collection.exports):
            lines.append(f"{name}: 'upload' writes to the Qdrant collection {collection.target_qdrant_collection}")
    if summary.plan is not None:
        lines.append(about_plan(summary.plan))
    if summary.error is not None:
        lines.append(summary.error)
    if summary_path is not None:
        lines.append(f"summary: {summary_path}")
    return lines
