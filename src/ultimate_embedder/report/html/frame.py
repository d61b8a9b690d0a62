"""The frame of a page: one self-contained file, its sections with a title and a caption each."""

from __future__ import annotations

from collections.abc import Iterable

from ultimate_embedder.report.html.style import CSS
from ultimate_embedder.report.html.words import text

# nothing may be loaded from anywhere, whatever a browser makes of the page
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def frame(title: str, header: str, sections: Iterable[tuple[str, str, str]]) -> str:
    """A page: its title, its header as HTML, and sections of title, caption and HTML; empty ones are left out."""
    body = "".join(
        f"<section><header><h2>{text(name)}</h2><p>{text(caption)}</p></header><div>{inner}</div></section>"
        for name, caption, inner in sections
        if inner
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)}</title><style>{CSS}</style></head>"
        f"<body><main>{header}{body}</main></body></html>\n"
    )
