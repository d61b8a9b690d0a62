"""Inline SVG. Shapes are stretched to the width of the page; words are HTML over them, and keep their size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ultimate_embedder.report.html.words import text

WIDTH, HEIGHT = 1000, 100  # of the coordinates; the page stretches them
HEADROOM = 1.08
LEAST_BAR = 0.015  # of the height


@dataclass(frozen=True)
class Scale:
    """The ranges of a plot, both from 0."""

    end: float
    top: float

    def x(self, at: float) -> str:
        """A place on the axis of time."""
        return _short(_share(at, self.end) * WIDTH)

    def y(self, value: float) -> str:
        """A height; SVG counts downwards."""
        return _short(HEIGHT - _share(value, self.top) * HEIGHT)


def _share(part: float, whole: float) -> float:
    return max(0.0, min(1.0, part / whole)) if whole > 0 else 0.0


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def steps(points: Iterable[tuple[float, float]], scale: Scale, kind: str, until: float | None = None) -> str:
    """An area under a curve that keeps each value until the next point."""
    path = "".join(f"H{scale.x(at)}V{scale.y(value)}" for at, value in points)
    last = scale.x(scale.end if until is None else until)
    return f'<path class="{kind}" d="M0 {HEIGHT}{path}H{last}V{HEIGHT}Z"/>' if path else ""


def level(points: Sequence[tuple[float, float]], scale: Scale, kind: str) -> str:
    """A line that keeps each value until the next point, and the first one from the beginning."""
    if not points:
        return ""
    changes = [points[0]]
    changes += [now for before, now in itertools.pairwise(points) if before[1] != now[1]]
    path = "".join(f"H{scale.x(at)}V{scale.y(value)}" for at, value in changes)
    return f'<path class="{kind}" d="M0 {scale.y(changes[0][1])}{path}H{WIDTH}"/>'


def dots(points: Iterable[tuple[float, float]], scale: Scale, kind: str) -> str:
    """A dot at each point: lines of no length with round ends, which stretching does not distort."""
    path = "".join(f"M{scale.x(at)} {scale.y(value)}h0" for at, value in points)
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def ranges(points: Iterable[tuple[float, float, float]], scale: Scale, kind: str) -> str:
    """A vertical line from the least to the most at each place."""
    path = "".join(f"M{scale.x(at)} {scale.y(least)}V{scale.y(most)}" for at, least, most in points)
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def plot(shapes: str, label: str, scale: Scale, sides: Mapping[float, str], height: int, over: str = "") -> str:
    """A plot with a title for readers of the screen, and words at heights of its left side."""
    lines = "".join(f"M0 {scale.y(at)}H{WIDTH}" for at in sides)
    words = "".join(
        f'<span class="side" style="bottom:{_share(at, scale.top):.2%}">{text(word)}</span>'
        for at, word in sides.items()
    )
    return (
        f'<div class="plot" style="height:{height}px"><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{text(label)}"><path class="grid" d="{lines}"/>{shapes}</svg>'
        f"{words}{over}</div>"
    )


def time_axis(seconds: float) -> str:
    """Times below plots that share one axis."""
    unit, name = (1, "s") if seconds < 180 else (60, "min") if seconds < 3 * 3600 else (3600, "h")
    return axis({at * unit / seconds: f"{at:,g}" if at else f"0 {name}" for at in ticks(seconds / unit)})


def axis(places: Mapping[float, str]) -> str:
    """Words below a plot, each at its share of the width."""
    words = "".join(f'<span style="left:{at:.2%}">{text(word)}</span>' for at, word in places.items())
    return f'<div class="axis" aria-hidden="true">{words}</div>'


def bars(counts: Sequence[int], scale: Scale, kind: str) -> str:
    """A bar for each count, side by side; a count that is small beside the others can still be seen."""
    path = ""
    for place, count in enumerate(counts):
        if count:
            left, right = scale.x(place + 0.06), scale.x(place + 0.94)
            path += f"M{left} {HEIGHT}V{scale.y(max(count, LEAST_BAR * scale.top))}H{right}V{HEIGHT}Z"
    return f'<path class="{kind}" d="{path}"/>' if path else ""


def ticks(top: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to `top`."""
    if not 0 < top < math.inf:
        return [0.0]
    rough = top / most
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= rough)
    return [round(step * index, 10) for index in range(int(top / step) + 1)]
