"""Texts and numbers of the page. All text is escaped; a number of the summary carries its place there."""

from __future__ import annotations

from ultimate_embedder.markup import escaped

MOST_CHARACTERS = 600  # of one text: names and reasons come from outside
SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def text(value: object, most: int = MOST_CHARACTERS) -> str:
    """A text from outside as HTML."""
    words = str(value)
    return escaped(words if len(words) <= most else f"{words[:most]} …")


def number(value: float, key: str, digits: int = 0, unit: str = "") -> str:
    """A number of the summary, as it is shown, and as it is there; `key` is its place: `collections.0.seconds`."""
    return marked(f"{value:,.{digits}f}{unit}", value, key)


def marked(words: str, value: object, key: str) -> str:
    """Words for a value of the summary; a star in `key` stands for the sum over all."""
    return f'<span data-key="{escaped(key)}" data-value="{escaped(value)}">{escaped(words)}</span>'


def size(count: float) -> str:
    """Bytes in words: `91.6 MB`."""
    for unit, name in SIZES:
        if count >= unit:
            return f"{count / unit:.{0 if count >= 100 * unit else 1}f} {name}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Seconds in words: `23.8 s`, `4 min 05 s`, `2 h 03 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def share(part: float) -> str:
    """A share in percent: one digit where it is small."""
    return f"{part:.1%}" if abs(part) < 0.1 else f"{part:.0%}"


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A table of cells that are HTML already; a heading with a leading # is that of numbers."""
    kinds = ['class="n"' if heading.startswith("#") else "" for heading in headings]
    pairs = zip(kinds, headings, strict=True)
    head = "".join(f'<th scope="col" {kind}>{text(heading.lstrip("#"))}</th>' for kind, heading in pairs)
    body = "".join(
        f"<tr>{''.join(f'<td {kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def pairs(items: list[tuple[str, str]], kind: str = "") -> str:
    """Names with values that are HTML already."""
    inner = "".join(f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in items)
    return f'<dl class="{kind}">{inner}</dl>'


def folded(title: str, inner: str) -> str:
    """Something that is shown when it is asked for."""
    return f"<details><summary>{text(title)}</summary>{inner}</details>" if inner else ""
