"""A comparison as one self-contained page, in the look of `report.html`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ultimate_embedder.errors import OutputError
from ultimate_embedder.files import atomic_file
from ultimate_embedder.find import CosineSpread, NeighbourOverlap, ShownText, VectorPair
from ultimate_embedder.report.compare.result import CollectionComparison, Comparison, Difference, Figure
from ultimate_embedder.report.compare.words import (
    figure_words,
    pair_name,
    ratio_words,
    side_words,
    value_words,
    verdicts,
)
from ultimate_embedder.report.html.frame import frame
from ultimate_embedder.report.html.svg import HEADROOM, Scale, axis, bars, plot, ticks
from ultimate_embedder.report.html.words import marked, number, pairs, share, table, text
from ultimate_embedder.terminal import valid_unicode

LONGEST_VALUE = 400
TITLE = "Comparison of two outputs"


def write_comparison_page(comparison: Comparison, path: Path) -> None:
    """Write the page to a file."""
    try:
        with atomic_file(path) as file:
            file.write(valid_unicode(make_comparison_page(comparison)).encode())
    except OSError as error:
        raise OutputError(f"--html {path} cannot be written: {error.strerror}.") from error


def make_comparison_page(comparison: Comparison) -> str:
    """The page. Every number has its place in the JSON of the comparison."""
    sections: list[tuple[str, str, str]] = [
        ("What was found", "In a sentence for each pair of vectors.", _found(comparison)),
        ("Options", "Those that differ.", _differences(comparison.options)),
    ]
    for index, each in enumerate(comparison.collections):
        sections += _collection(each, f"collections.{index}")
    sections.append(("Versions and machine", "As far as they differ.", _differences(comparison.environment)))
    title = f"{TITLE}: {comparison.a.folder} and {comparison.b.folder}"
    return frame(title, _header(comparison), sections)


def _header(comparison: Comparison) -> str:
    status, sign, words = (
        ("completed", "✓", "Compared") if comparison.complete else ("partial", "…", "Not all compared")
    )
    sides = [
        (name, f"{text(side.folder)}<small> {text(side_words(side))}</small>")
        for name, side in (("A", comparison.a), ("B", comparison.b))
    ]
    return (
        f'<header><div class="status {status}"><b aria-hidden="true">{sign}</b>{words}</div>'
        f"<h1>{TITLE}</h1>{pairs(sides)}<p></p></header>"
    )


def _found(comparison: Comparison) -> str:
    lines = [*verdicts(comparison), *comparison.notes]
    lines += [
        f"only in {name}: {', '.join(of)}" for name, of in (("A", comparison.only_a), ("B", comparison.only_b)) if of
    ]
    return "".join(f"<p>{text(line)}</p>" for line in lines)


def _differences(found: Sequence[Difference]) -> str:
    rows = [
        [text(each.name), *(f"<code>{text(value_words(value, LONGEST_VALUE))}</code>" for value in (each.a, each.b))]
        for each in found
    ]
    return table(["what", "A", "B"], rows) if rows else ""


def _figures(title: str, found: Sequence[Figure], key: str) -> str:
    if not found:
        return ""
    rows = [
        [
            text(each.name),
            *(
                marked(figure_words(value, each.unit), value, f"{key}.{index}.{side}")
                for side, value in (("a", each.a), ("b", each.b))
            ),
            text(ratio_words(each)),
        ]
        for index, each in enumerate(found)
    ]
    return f"<h3>{text(title)}</h3>{table(['', '#A', '#B', '#B/A'], rows)}"


def _collection(each: CollectionComparison, key: str) -> Iterator[tuple[str, str, str]]:
    name = each.a if each.a == each.b else f"{each.a} → {each.b}"
    notes = "".join(f'<p class="soft">{text(note)}</p>' for note in each.notes)
    vectors = "".join(_pair(pair, f"{key}.vectors.{index}") for index, pair in enumerate(each.vectors))
    problem = f'<p class="broken">{text(each.problem)}</p>' if each.problem else ""
    yield f"{name}: vectors", "Of the texts that both have.", problem + _texts(each, key) + vectors + notes
    yield f"{name}: models", "What differs.", _differences(each.models)
    yield (
        f"{name}: chunks and time",
        "From the summaries.",
        _figures("Chunks", each.counts, f"{key}.counts") + _figures("Time", each.timings, f"{key}.timings"),
    )
    passes = "".join(
        _figures(one.name, one.figures, f"{key}.passes.{index}.figures") for index, one in enumerate(each.passes)
    )
    yield f"{name}: throughput and memory", "Of each model; a dash where a run encoded nothing.", passes
    yield (
        f"{name}: mitigations",
        "How often each was taken.",
        _figures("Mitigations", each.mitigations, f"{key}.mitigations"),
    )


def _texts(each: CollectionComparison, key: str) -> str:
    if each.texts is None:
        return ""
    names = [("texts in A", "a"), ("texts in B", "b"), ("in both", "common")]
    shown = [(name, number(getattr(each.texts, field), f"{key}.texts.{field}")) for name, field in names]
    if each.texts.changed_ids is not None:
        shown.append(("ids with another text", number(each.texts.changed_ids, f"{key}.texts.changed_ids")))
    return pairs(shown, "top")


def _pair(pair: VectorPair, key: str) -> str:
    as_searched = " <small>as searched: all models together</small>" if pair.whole else ""
    dims = f"{pair.dim_a:,}" if pair.dim_a == pair.dim_b else f"{pair.dim_a:,} → {pair.dim_b:,}"
    notes = [
        f"{dims} dimensions",
        *pair.notes,
        *([f"No cosines: {pair.why_no_cosines}."] if pair.why_no_cosines else []),
    ]
    if pair.unusable:
        notes.append(f"{pair.unusable:,} texts were left out: a vector is not finite or has no length")
    words = "".join(f'<p class="soft">{text(note)}</p>' for note in notes)
    cosines = _cosines(pair.cosines, f"{key}.cosines") if pair.cosines else ""
    near = _neighbours(pair.neighbours, f"{key}.neighbours") if pair.neighbours else ""
    return f"<h3>{text(pair_name(pair))}{as_searched}</h3>{words}{cosines}{near}"


def _cosines(spread: CosineSpread, key: str) -> str:
    figures = [
        ("mean cosine", number(spread.mean, f"{key}.mean", 6)),
        ("worst", number(spread.worst, f"{key}.worst", 6)),
        *((name, number(value, f"{key}.percentiles.{name}", 6)) for name, value in spread.percentiles.items()),
        ("equal in every bit", number(spread.equal, f"{key}.equal")),
    ]
    label = f"Texts by cosine, from {spread.low:g} to 1"
    width = 1 - spread.low
    axis_words = {share_: f"{spread.low + share_ * width:.7g}" for share_ in (0.0, 0.25, 0.5, 0.75, 1.0)}
    rows = [[f"{each.cosine:.6f}", _shown(each.text)] for each in spread.examples]
    worst = _folded("Texts with the lowest cosines", table(["#cosine", "text"], rows)) if rows else ""
    return f"{pairs(figures)}{_histogram(spread.bins, label)}{axis(axis_words)}{worst}"


def _neighbours(near: NeighbourOverlap, key: str) -> str:
    figures = [
        ("neighbours in common", marked(share(near.mean), near.mean, f"{key}.mean")),
        ("the nearest is the same", marked(share(near.same_nearest), near.same_nearest, f"{key}.same_nearest")),
        ("sampled texts", number(near.sample, f"{key}.sample")),
        ("neighbours of each", number(near.neighbours, f"{key}.neighbours")),
    ]
    label = f"Texts by how many of their {near.neighbours:,} nearest neighbours are in both"
    count = len(near.shared)
    step = max(1, count // 11)
    axis_words = {(place + 0.5) / count: f"{place:,}" for place in range(0, count, step)}
    rows = [[f"{each.shared:,}", _shown(each.text), _list(each.only_a), _list(each.only_b)] for each in near.examples]
    headings = ["#in common", "text", "only near in A", "only near in B"]
    least = _folded("Texts with the fewest neighbours in common", table(headings, rows)) if rows else ""
    return f"{pairs(figures)}{_histogram(near.shared, label)}{axis(axis_words)}{least}"


def _histogram(counts: Sequence[int], label: str) -> str:
    top = max(counts) * HEADROOM
    scale = Scale(len(counts), top)
    sides = {at: f"{at:,g}" for at in ticks(top, 3) if at == int(at)}
    drawn = plot(bars(counts, scale, "fill h0"), label, scale, sides, 110)
    return f'<div class="strip"><h3><small>{text(label)}</small></h3>{drawn}</div>'


def _shown(shown: ShownText) -> str:
    return f"{text(shown.text)}<small>{text(shown.chunk_id)}</small>"


def _list(texts: Sequence[ShownText]) -> str:
    return "".join(f"<div>{_shown(each)}</div>" for each in texts)


def _folded(title: str, inner: str) -> str:
    return f"<details><summary>{text(title)}</summary>{inner}</details>"
