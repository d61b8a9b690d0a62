"""The pages: a frame with links, and parts that the server fills and a script replaces."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import HTMLResponse

from ultimate_embedder._version import __version__
from ultimate_embedder.markup import escaped

LINKS = (("/", "Run"), ("/search", "Search"), ("/report", "Report"))
SECTIONS = (
    (
        "devices",
        "Devices",
        "Memory against the ceiling, a line at the peak; speed over the last half minute.",
    ),
    ("passes", "Passes", "One model over one collection."),
    ("activities", "Under way", "Beside the passes."),
    ("timeline", "Timeline", "Leases, passes, memory and throughput of each device. Marks are mitigations."),
    ("mitigations", "Mitigations", "What was changed because memory, a device or a precision was short."),
    ("warnings", "Warnings", "The latest first."),
    ("collections", "Collections", "Chunks as they were read, points as they were exported."),
    ("api", "Models of the API", "Loaded when a client or a search first asks for them."),
    ("log", "Log", "What happened, the latest first; batches are left out."),
)


def page(title: str, body: str, *, path: str, script: str | None = None) -> HTMLResponse:
    """A page; `path` is its own link."""
    links = "".join(
        f'<a href="{href}"{" aria-current=page" if href == path else ""}>{name}</a>' for href, name in LINKS
    )
    loads = f'<script src="/static/{script}" defer></script>' if script else ""
    return HTMLResponse(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escaped(title)}</title>"
        '<link rel="icon" href="/static/icon.svg"><link rel="stylesheet" href="/static/report.css">'
        f'<link rel="stylesheet" href="/static/serve.css">{loads}</head>'
        f'<body data-version="{__version__}"><nav><b>ultimate-embedder</b>{links}'
        f'<span id="connection" role="status"></span></nav><main>{body}</main></body></html>\n'
    )


def live_page(parts: Mapping[str, str], title: str) -> HTMLResponse:
    """The page about a run, with its parts as they are now."""
    sections = "".join(
        f"<section{'' if parts.get(name) else ' hidden'}><header><h2>{heading}</h2><p>{caption}</p></header>"
        f'<div id="{name}">{parts.get(name, "")}</div></section>'
        for name, heading, caption in SECTIONS
    )
    return page(title, f'<header id="head">{parts.get("head", "")}</header>{sections}', path="/", script="live.js")
