"""Graphs of other runtimes, exported in this process: a child would import torch, transformers and onnx again."""

from __future__ import annotations

from pathlib import Path

from ultimate_embedder.models import resolve_model
from ultimate_embedder.models.export_child import make_graph
from ultimate_embedder.models.exported import GraphWish, read_graph


def have_graph(model: str | Path, backend: str, *, int8: bool) -> None:
    """Put the graph of a model into the cache, unless it is there."""
    wish = GraphWish(resolve_model(str(model)), backend, int8)
    if read_graph(wish) is None:
        make_graph(wish)
