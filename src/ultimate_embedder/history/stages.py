"""The parts of a run beside the passes, as the history names them."""

from __future__ import annotations

START = "start"
"""Before the first collection: locking, opening devices, finding models. A unit is a run."""
LOAD_CHUNKS = "load chunks"
"""A unit is a chunk."""
OTHER = "other"
"""Of a collection, beside the rest: opening stores, checking. A unit is a chunk."""


def load_model(model: str, dtype: str) -> str:
    """Loading a model; a unit is a load."""
    return f"load {model} {dtype}"


def export(kind: str) -> str:
    """Writing an export; a unit is a point."""
    return f"export {kind}"
