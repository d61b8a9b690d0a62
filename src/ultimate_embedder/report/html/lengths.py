"""How long the texts were, for each model, and what was beyond its token limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ultimate_embedder.batching import LENGTH_EDGES
from ultimate_embedder.report.html.svg import HEADROOM, HEIGHT, Scale, axis, plot, ticks
from ultimate_embedder.report.html.svg import bars as draw_bars
from ultimate_embedder.report.html.words import folded, number, share, table, text
from ultimate_embedder.summary import CollectionSummary, LengthBin, PassSummary, RunSummary

MOST_MODELS = 8
MOST_PASSES = 20
PLOT_PX = 110
HATCH = 7  # between lines, of the height of a plot


@dataclass(frozen=True)
class _Bar:
    """Texts of one bin, of all collections."""

    edge: int
    texts: int
    overlong: int
    tokens: int
    tokens_lost: int


def draw_lengths(summary: RunSummary, hues: Mapping[str, str]) -> str:
    """A histogram for each model; what is beyond its limit is hatched, and stands behind a dashed line."""
    found = [
        (collection, one, f"collections.{index}.passes.{place}")
        for index, collection in enumerate(summary.collections)
        for place, one in enumerate(collection.passes)
        if one.lengths
    ]
    models = list(dict.fromkeys(one.model for _, one, _ in found))[:MOST_MODELS]
    drawn = ""
    for model in models:
        passes = [(collection, one) for collection, one, _ in found if one.model == model]
        drawn += _histogram(model, passes, hues.get(model, ""))
    return f'<div class="pair">{drawn}</div>{_numbers(found)}' if drawn else ""


def _histogram(model: str, passes: Sequence[tuple[CollectionSummary, PassSummary]], hue: str) -> str:
    bars = _bars([each for _, one in passes for each in one.lengths])
    limits = {each.max_tokens for collection, one in passes for each in collection.models if each.model == one.model}
    limit = max((each for each in limits if each), default=0)
    texts, overlong, lost = (sum(getattr(bar, key) for bar in bars) for key in ("texts", "overlong", "tokens_lost"))
    words = f"{texts:,} texts, none beyond the limit of {limit:,} tokens" if limit else f"{texts:,} texts"
    if overlong:
        taken = f"lose {lost:,} tokens" if lost else "are pooled"
        words = f"{overlong:,} of {texts:,} texts ({share(overlong / texts)}) are beyond {limit:,} tokens and {taken}"
    scale = Scale(float(len(bars)), max(bar.texts for bar in bars) * HEADROOM)
    shapes = draw_bars([bar.texts for bar in bars], scale, f"fill {hue}")
    shapes += draw_bars([bar.overlong for bar in bars], scale, "beyond")
    shapes += "".join(_hatching(place, bar.overlong, scale) for place, bar in enumerate(bars))
    shapes += _limit_line(limit, bars, scale)
    sides = {at: f"{at:,g}" for at in ticks(scale.top, 3) if at == int(at)}
    tips = "".join(_tip(place, bar, len(bars)) for place, bar in enumerate(bars))
    chart = plot(shapes, f"Texts of {model} by their tokens: {words}", scale, sides, PLOT_PX, tips)
    return f"<div><h3>{text(model)} <small>{text(words)}</small></h3>{chart}{_axis(bars)}</div>"


def _bars(bins: Sequence[LengthBin]) -> list[_Bar]:
    """One for each edge from the shortest to the longest; a summary from elsewhere may have other edges."""
    edges = sorted({each.most_tokens for each in bins})
    edges = (
        [edge for edge in LENGTH_EDGES if edges[0] <= edge <= edges[-1]] if set(edges) <= set(LENGTH_EDGES) else edges
    )
    bars = []
    for edge in edges[: len(LENGTH_EDGES)]:
        here = [each for each in bins if each.most_tokens == edge]
        sums = (sum(getattr(each, key) for each in here) for key in ("texts", "overlong", "tokens", "tokens_lost"))
        bars.append(_Bar(edge, *sums))
    return bars


def _hatching(place: int, count: int, scale: Scale) -> str:
    """Lines over a bar, so that it differs not by its colour alone."""
    top, left, right = float(scale.y(count)), scale.x(place), scale.x(place + 1)
    heights = [HEIGHT - HATCH * step for step in range(1, HEIGHT // HATCH) if HEIGHT - HATCH * step > top]
    path = "".join(f"M{left} {height}H{right}" for height in heights)
    return f'<path class="hatch" d="{path}"/>' if count and path else ""


def _limit_line(limit: int, bars: Sequence[_Bar], scale: Scale) -> str:
    """After the last bar that is within it; nothing if all texts are."""
    place = sum(bar.edge <= limit for bar in bars)
    if not limit or place >= len(bars):
        return ""
    return f'<path class="ceiling" d="M{scale.x(place)} 0V{HEIGHT}"/>'


def _tip(place: int, bar: _Bar, count: int) -> str:
    lost = f", {bar.tokens_lost:,} lost" if bar.tokens_lost else ""
    beyond = f", {bar.overlong:,} beyond the limit" if bar.overlong else ""
    tip = f"up to {bar.edge:,} tokens: {bar.texts:,} texts{beyond}; {bar.tokens:,} tokens{lost}"
    return f'<span class="tip" style="left:{place / count:.2%};width:{1 / count:.2%}" title="{text(tip)}"></span>'


def _axis(bars: Sequence[_Bar]) -> str:
    """The most tokens of a bin; of many bins only some, as words would cover each other."""
    every = 1 + len(bars) // 7
    shown = [(place, bar) for place, bar in enumerate(bars) if (len(bars) - 1 - place) % every == 0]
    return axis({(place + 0.5) / len(bars): _short(bar.edge) for place, bar in shown})


def _short(edge: int) -> str:
    return f"{edge:,}" if edge < 10_000 else f"{edge // 1024:,} k" if edge < 1 << 20 else f"{edge >> 20:,} M"


def _numbers(found: Sequence[tuple[CollectionSummary, PassSummary, str]]) -> str:
    rows = []
    for collection, one, key in found[:MOST_PASSES]:
        for place, each in enumerate(one.lengths):
            name = f"{text(one.model)}<small>{text(collection.collection)}</small>" if not place else ""
            keys = ("most_tokens", "texts", "overlong", "tokens", "tokens_lost")
            rows.append([name, *(number(getattr(each, field), f"{key}.lengths.{place}.{field}") for field in keys)])
    more = f"<p>And {len(found) - MOST_PASSES:,} more; summary.json lists all.</p>" if len(found) > MOST_PASSES else ""
    headings = ["model", "#tokens up to", "#texts", "#beyond the limit", "#tokens", "#lost"]
    return folded("Numbers", table(headings, rows) + more)
