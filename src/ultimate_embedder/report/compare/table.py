"""A comparison as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ultimate_embedder.find import NeighbourOverlap, ShownText, VectorPair
from ultimate_embedder.report.compare.result import CollectionComparison, Comparison, Difference, Figure
from ultimate_embedder.report.compare.words import (
    NOTHING,
    figure_words,
    pair_name,
    ratio_words,
    side_words,
    value_words,
    verdicts,
)
from ultimate_embedder.report.table import aligned
from ultimate_embedder.terminal import counted, printable

WIDEST = 44  # characters of a value
SHOWN = 72  # characters of a text
MOST_SHOWN, MOST_OTHERS = 3, 2  # JSON and the page have more


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """What was found first, then what differs, then every figure."""
    yield f"A  {printable(comparison.a.folder)}  {side_words(comparison.a)}"
    yield f"B  {printable(comparison.b.folder)}  {side_words(comparison.b)}"
    yield ""
    yield from map(printable, verdicts(comparison))
    notes = [*comparison.notes, *(note for each in comparison.collections for note in each.notes)]
    yield from (f"note: {printable(note)}" for note in notes)
    for name, alone in (("A", comparison.only_a), ("B", comparison.only_b)):
        if alone:
            yield f"only in {name}: {printable(', '.join(alone))}"
    yield from _differences("options that differ", comparison.options)
    yield from _differences("versions and machine", comparison.environment)
    for each in comparison.collections:
        yield from _collection(each)


def _collection(each: CollectionComparison) -> Iterator[str]:
    name = each.a if each.a == each.b else f"{each.a} → {each.b}"
    title = printable(name)
    yield from _differences(f"{title}: models", each.models)
    yield from _figures(f"{title}: chunks", each.counts)
    yield from _figures(f"{title}: time", each.timings)
    for one in each.passes:
        yield from _figures(f"{title}: {printable(one.name)}", one.figures)
    yield from _figures(f"{title}: mitigations", each.mitigations)
    if each.texts is not None:
        counts = each.texts
        changed = f", {counted(counts.changed_ids, 'id')} with another text" if counts.changed_ids else ""
        yield ""
        yield f"{title}: {counts.a:,} texts in A, {counts.b:,} in B, {counts.common:,} in both{changed}"
    for pair in each.vectors:
        yield from _pair(f"{title}: {printable(pair_name(pair))}", pair)


def _differences(title: str, found: Sequence[Difference]) -> Iterator[str]:
    if not found:
        return
    rows = [[title, "A", "B"]]
    rows += [
        [printable(each.name), *(printable(value_words(value, WIDEST)) for value in (each.a, each.b))] for each in found
    ]
    yield ""
    yield from aligned(rows, 3)


def _figures(title: str, found: Sequence[Figure]) -> Iterator[str]:
    if not found:
        return
    rows = [[title, "A", "B", "B/A"]]
    for each in found:
        values = [figure_words(value, each.unit) for value in (each.a, each.b)]
        rows.append([printable(each.name), *values, ratio_words(each)])
    yield ""
    yield from aligned(rows, 1)


def _pair(title: str, pair: VectorPair) -> Iterator[str]:
    yield ""
    yield title + (" (as searched)" if pair.whole else "")
    yield from (f"  note: {printable(note)}" for note in pair.notes)
    if pair.unusable:
        yield f"  {counted(pair.unusable, 'text')} left out: a vector is not finite or has no length"
    if pair.why_no_cosines:
        yield f"  no cosines: {pair.why_no_cosines}"
    if (cosines := pair.cosines) is not None:
        percentiles = "  ".join(f"{name} {value:.6f}" for name, value in cosines.percentiles.items())
        yield f"  cosine   mean {cosines.mean:.6f}  worst {cosines.worst:.6f}  {percentiles}"
        yield f"  equal in every bit: {cosines.equal:,} of {cosines.texts:,}"
        for each in cosines.examples[:MOST_SHOWN]:
            yield f"  {each.cosine:.6f}  {_text(each.text)}"
    if (near := pair.neighbours) is not None:
        yield from _neighbours(near)


def _neighbours(near: NeighbourOverlap) -> Iterator[str]:
    spread = "  ".join(f"{shared}: {count:,}" for shared, count in enumerate(near.shared) if count)
    yield f"  {near.mean:.1%} of the {near.neighbours} nearest neighbours are the same ({near.sample:,} texts)"
    yield f"  texts by neighbours in common: {spread}"
    for each in near.examples[:MOST_SHOWN]:
        yield f"  {each.shared} in common  {_text(each.text)}"
        yield from (f"    only in A    {_text(text)}" for text in each.only_a[:MOST_OTHERS])
        yield from (f"    only in B    {_text(text)}" for text in each.only_b[:MOST_OTHERS])


def _text(shown: ShownText) -> str:
    words = printable(" ".join(shown.text.split()))
    text = words if len(words) <= SHOWN else f"{words[: SHOWN - 2]} …"
    return f"{printable(shown.chunk_id) or NOTHING}: {text}" if shown.chunk_id or text else NOTHING
