"""Throughput and batch sizes over time: a strip for each model, all on one scale, so that no colour is needed."""

from __future__ import annotations

from collections.abc import Mapping

from ultimate_embedder.report.html.curves import BINS, Curves, Pace
from ultimate_embedder.report.html.svg import HEADROOM, Scale, dots, plot, ranges, steps, ticks, time_axis
from ultimate_embedder.report.html.words import text

MOST_STRIPS = 8


def draw_throughput(events: Curves, hues: Mapping[str, str]) -> str:
    """Tokens per second. Tokens, as batches come longest first: texts per second rise even at a constant speed."""
    width = events.seconds / BINS
    paces = _largest(events)
    fastest = max((max(pace.tokens_in) / width for pace in paces.values()), default=0.0)
    scale, sides = _scale(events, fastest)
    strips = ""
    for model, pace in paces.items():
        curve = [(place * width, tokens / width) for place, tokens in enumerate(pace.tokens_in)]
        most = f"{max(pace.tokens_in) / width:,.0f} tokens/s at most"
        shape = steps(curve, scale, f"fill {hues.get(model, '')}")
        strips += _strip(model, most, plot(shape, f"Tokens per second of {model}: {most}", scale, sides, 72))
    return strips + time_axis(events.axis_seconds) if strips else ""


def draw_pace(device: str, tokens_in: list[float], events: Curves, fastest: float) -> str:
    """Tokens per second of one device; `fastest` is the most of a bin on any, so that all have one scale."""
    width = events.seconds / BINS
    scale, sides = _scale(events, fastest / width)
    curve = [(place * width, tokens / width) for place, tokens in enumerate(tokens_in)]
    label = f"Tokens per second of {device}: {max(tokens_in) / width:,.0f} at most"
    return plot(steps(curve, scale, "fill pace", until=events.axis_seconds), label, scale, sides, 56)


def draw_batches(events: Curves, hues: Mapping[str, str]) -> str:
    """Rows of batches: a line from the smallest to the largest, and a dot at the mean."""
    paces = _largest(events)
    most = max((values[1] for pace in paces.values() for values in pace.rows_in.values()), default=0)
    scale, sides = _scale(events, most)
    strips = ""
    for model, pace in paces.items():
        places = [((place + 0.5) / BINS * events.seconds, values) for place, values in sorted(pace.rows_in.items())]
        hue = hues.get(model, "")
        shape = ranges([(at, values[0], values[1]) for at, values in places], scale, f"range {hue}")
        shape += dots([(at, values[2] / values[3]) for at, values in places], scale, f"dot {hue}")
        words = f"{pace.batches:,} batches, {pace.rows / max(1, pace.batches):,.1f} rows on average"
        strips += _strip(model, words, plot(shape, f"Rows of batches of {model}: {words}", scale, sides, 72))
    return strips + time_axis(events.axis_seconds) if strips else ""


def _largest(events: Curves) -> dict[str, Pace]:
    largest = sorted(events.paces.items(), key=lambda item: -item[1].tokens)[:MOST_STRIPS]
    chosen = {model for model, _ in largest}
    return {model: pace for model, pace in events.paces.items() if model in chosen}


def _scale(events: Curves, most: float) -> tuple[Scale, dict[float, str]]:
    top = max(most, 1e-9) * HEADROOM
    return Scale(events.axis_seconds, top), {at: _short(at) for at in ticks(top, 3)}


def _short(value: float) -> str:
    return f"{value:,g}" if value < 10_000 else f"{value / 1000:,g} k"


def _strip(model: str, words: str, drawn: str) -> str:
    return f'<div class="strip"><h3>{text(model)} <small>{text(words)}</small></h3>{drawn}</div>'
