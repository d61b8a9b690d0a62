"""The nodes of a cluster on the page about a run."""

from __future__ import annotations

from collections import Counter

from ultimate_embedder.report.html.words import number, table, text
from ultimate_embedder.summary import NodeSummary, RunSummary
from ultimate_embedder.terminal import counted

MOST_NODES = 200
MOST_LOSSES = 3  # that are told of a node


def draw_nodes(summary: RunSummary, start: float | None) -> str:
    """A row for each node: what it is, what it has done, and what became of it."""
    rows = [_row(node, f"nodes.{index}", start) for index, node in enumerate(summary.nodes[:MOST_NODES])]
    more = len(summary.nodes) - MOST_NODES
    rest = f"<p>And {more:,} more; summary.json lists them.</p>" if more > 0 else ""
    headings = ["node", "devices", "#texts", "#batches", "#tokens", "#joined at, s", "#lost", "what happened"]
    return table(headings, rows) + rest if rows else ""


def _row(node: NodeSummary, key: str, start: float | None) -> list[str]:
    where = " ".join(word for word in (node.address, f"({node.host})" if node.host else "") if word)
    joined = "–"
    if node.joined_at is not None:
        joined = f"{max(0.0, node.joined_at - start):.1f}" if start is not None else "yes"
    return [
        f"{text(node.node)}<small>{text(where)}</small>",
        _devices(node),
        *(number(getattr(node, name), f"{key}.{name}") for name in ("texts", "batches", "tokens")),
        joined,
        number(node.lost, f"{key}.lost"),
        _happened(node),
    ]


def _devices(node: NodeSummary) -> str:
    kinds = Counter(each.hardware for each in node.devices)
    words = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items())
    about = ", ".join(word for word in (node.dtype, counted(node.cores, "core") if node.cores else "") if word)
    return f"{text(words or '–')}<small>{text(about)}</small>"


def _happened(node: NodeSummary) -> str:
    told = [f"refused: {node.refused}"] if node.refused is not None else []
    told += [f"lost: {each.reason}" for each in node.losses[:MOST_LOSSES]]
    told += [f"and {len(node.losses) - MOST_LOSSES:,} more"] if len(node.losses) > MOST_LOSSES else []
    told += node.differs
    return "".join(f"<small>{text(each)}</small>" for each in told) or "–"
