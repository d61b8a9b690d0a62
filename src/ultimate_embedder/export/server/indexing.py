"""Indexing is off while a new collection is loaded, and on afterwards.

That it is off is noted on the server before it is switched, so that whoever completes an interrupted upload switches
it on. Where the server has no place for the note (before 1.16), indexing is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ultimate_embedder.export.server.calls import Server

INDEXING_KEY = "ultimate_embedder_indexing"
DEFAULT_THRESHOLD_KB = 20_000  # Qdrant's, for a server that names none


def switch_indexing_off(server: Server, target: str) -> bool:
    """Build no search graph until `switch_indexing_on`; False if the server cannot note it."""
    optimizers = server.config(target).get("optimizer_config")
    threshold = optimizers.get("indexing_threshold") if isinstance(optimizers, Mapping) else None
    note = {"off": True, "threshold_kb": _threshold_kb(threshold)}
    if not server.write_record(target, note, INDEXING_KEY):
        return False
    _set_threshold(server, target, 0)
    return True


def switch_indexing_on(server: Server, target: str) -> bool:
    """Switch indexing on again, if an upload has switched it off; True if so."""
    note = server.read_record(target, INDEXING_KEY)
    if not isinstance(note, Mapping) or note.get("off") is not True:
        return False
    threshold_kb = _threshold_kb(note.get("threshold_kb"))
    _set_threshold(server, target, threshold_kb)
    server.write_record(target, {"off": False, "threshold_kb": threshold_kb}, INDEXING_KEY)
    return True


def _set_threshold(server: Server, target: str, threshold_kb: int) -> None:
    what = "switch indexing on" if threshold_kb else "switch indexing off"
    server.change(what, target, {"optimizers_config": {"indexing_threshold": threshold_kb}})


def _threshold_kb(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else DEFAULT_THRESHOLD_KB
