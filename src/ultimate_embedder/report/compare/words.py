"""Values and findings of a comparison in words, for the table and for the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ultimate_embedder.find import VectorPair
from ultimate_embedder.report.compare.result import Comparison, Figure, RunSide
from ultimate_embedder.report.html.words import duration, size
from ultimate_embedder.terminal import counted

NOTHING = "–"


def value_words(value: Any, most: int) -> str:
    """A value of an option; of a long one, the beginning."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = ", ".join(value)
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if value is None or words == "":
        return NOTHING
    return words if len(words) <= most else f"{words[: most - 2]} …"


def figure_words(value: float | None, unit: str) -> str:
    """A figure with its unit."""
    if value is None:
        return NOTHING
    if unit == "B":
        return size(value)
    if unit == "s":
        return f"{value:,.1f} s"
    if unit == "x":
        return f"{value:.3f}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def ratio_words(figure: Figure) -> str:
    """B divided by A."""
    ratio = figure.ratio
    if figure.a == figure.b and figure.a is not None:
        return "="
    return NOTHING if ratio is None else f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"


def side_words(side: RunSide) -> str:
    """The state of an output's last run."""
    when = f", {side.started_at.replace('T', ' ')[:16]} UTC" if side.started_at else ""
    return f"run {side.state}{when}" + (f", {duration(side.seconds)}" if side.seconds is not None else "")


def pair_name(pair: VectorPair) -> str:
    """What was compared with what."""
    return pair.a if pair.a == pair.b else f"{pair.a} → {pair.b}"


def verdicts(comparison: Comparison) -> Iterator[str]:
    """What was found, in a sentence for each pair of vectors."""
    for each in comparison.collections:
        name = each.a if each.a == each.b else f"{each.a} and {each.b}"
        if each.problem is not None:
            yield f"{name}: vectors were not compared: {each.problem}"
        for pair in each.vectors:
            yield f"{name}: {_verdict(pair)}"


def _verdict(pair: VectorPair) -> str:
    found = [f"{pair_name(pair)}, {counted(pair.texts, 'common text')}"]
    if (cosines := pair.cosines) is not None:
        same = " (all equal in every bit)" if cosines.equal == cosines.texts else ""
        found.append(f"cosine {cosines.mean:.6f} on average, {cosines.worst:.6f} at worst{same}")
    if (near := pair.neighbours) is not None:
        found.append(
            f"{near.mean * near.neighbours:.2f} of {counted(near.neighbours, 'nearest neighbour')} in common, "
            f"the nearest is the same for {near.same_nearest:.1%}"
        )
    words = "; ".join(found)
    return f"{words}; no cosines: {pair.why_no_cosines}" if pair.why_no_cosines else words
