"""Rows of cells in columns that fit a width: the least important columns are left out where there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

GAP = 2  # columns of the screen between two cells
LEAST_BAR, MOST_BAR = 5, 30
LEAST_NAME = 12
Piece = tuple[str, str]
"""A text and its style, in the words of rich; '' for none."""
Line = tuple[Piece, ...]


@dataclass(frozen=True)
class Bars:
    """The characters of a bar: for terminals that can show them, and for those that cannot."""

    full: str
    rest: str


BLOCKS, PLAIN = Bars("█", "░"), Bars("#", "-")


@dataclass(frozen=True)
class Cell:
    """A cell: a text, or a bar if it has a share."""

    text: str = ""
    style: str = ""
    share: float | None = None


@dataclass(frozen=True)
class Column:
    """A column; of those that do not fit, the one with the highest `rank` goes first. One with rank 0 stays."""

    rank: int = 0
    right: bool = False


def bar_for(encoding: str | None) -> Bars:
    """Bars that a stream of this encoding can show."""
    try:
        (BLOCKS.full + BLOCKS.rest).encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return PLAIN
    return BLOCKS


def lay_out(rows: Sequence[Sequence[Cell]], columns: Sequence[Column], width: int, bars: Bars) -> list[Line]:
    """The rows as lines of at most `width` columns of the screen. The first column is cut, if nothing else helps."""
    widths = [max((_needs(row[number]) for row in rows), default=0) for number in range(len(columns))]
    shown = [number for number in range(len(columns)) if widths[number]]
    spared = max(0, widths[0] - LEAST_NAME) if widths else 0
    while sum(widths[number] + GAP for number in shown) - GAP - spared > width:
        ranked = [number for number in shown if columns[number].rank]
        if not ranked:
            break
        shown.remove(max(ranked, key=lambda number: columns[number].rank))
    left = width - sum(widths[number] + GAP for number in shown) + GAP
    if left < 0:
        widths[0] = max(1, widths[0] + left)
    with_bar = [number for number in shown if any(row[number].share is not None for row in rows)]
    for number in with_bar if left > 0 else ():
        widths[number] += min(left, MOST_BAR - LEAST_BAR)
    return [_line([(row[number], widths[number], columns[number]) for number in shown], bars) for row in rows]


def _needs(cell: Cell) -> int:
    return LEAST_BAR if cell.share is not None else cell_len(cell.text)


def _line(cells: Sequence[tuple[Cell, int, Column]], bars: Bars) -> Line:
    pieces: list[Piece] = []
    for number, (cell, width, column) in enumerate(cells):
        if number:
            pieces.append((" " * GAP, ""))
        if cell.share is not None:
            full = min(width, int(cell.share * width + 1e-9))
            pieces += [(bars.full * full, cell.style), (bars.rest * (width - full), "dim")]
        else:
            pieces.append((_fitted(cell.text, width, right=column.right), cell.style))
    return tuple(piece for piece in pieces if piece[0])


def _fitted(text: str, width: int, *, right: bool) -> str:
    size = cell_len(text)
    if size > width:
        return f"{set_cell_size(text, width - 1)}…" if width > 1 else set_cell_size(text, width)
    space = " " * (width - size)
    return space + text if right else text + space


def plain(line: Line) -> str:
    """The line as text."""
    return "".join(text for text, _ in line).rstrip()
