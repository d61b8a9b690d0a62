"""Mitigations as plain sentences, with their reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ultimate_embedder.events import CompanionPlaced, Mitigated
from ultimate_embedder.execution import MITIGATIONS
from ultimate_embedder.report.html.words import size
from ultimate_embedder.terminal import counted, printable
from ultimate_embedder.types import node_of

MOST_CHARACTERS = 400  # of one text: names and reasons come from outside
MOST_NAMED = 2  # devices of nodes
SENTENCES = {mitigation.kind: mitigation.sentence for mitigation in MITIGATIONS}

Tell = Callable[..., str]
REASONS: tuple[tuple[tuple[str, ...], Tell], ...] = (
    (("reason",), "{}".format),
    (("error",), "{}".format),
    (("rows", "planned_rows"), "{} of {} rows per batch".format),
    (("unusable", "texts"), "{} of the first {} texts".format),
    (("rows", "still_unusable"), "{} rows, {} of them still unusable".format),
    (("rows", "longest"), "{} x {} tokens".format),
    (("weight_bytes", "usable_bytes"), lambda need, room: f"it needs {size(need)}, {size(room)} are free"),
    (("weight_bytes",), lambda need: f"{size(need)} of weights"),
    (("before", "after"), "from {} to {}".format),
)
"""Details that give a reason, in words. Of those that share a name, the first is told."""


def shown(text: object, most: int = MOST_CHARACTERS) -> str:
    """A text from outside: printable, and not longer than a few lines."""
    words = str(text)
    return printable(words if len(words) <= most else f"{words[:most]} …")


def devices_in_words(devices: Sequence[str]) -> str:
    """`card:0, card:1`; of several nodes with more than two devices, how many there are."""
    nodes = {node_of(device) for device in devices} - {None}
    if not nodes or len(devices) <= MOST_NAMED:
        return ", ".join(devices)
    return f"{counted(len(devices), 'device')} of {counted(len(nodes), 'node')}"


def mitigation_words(event: Mitigated | CompanionPlaced) -> str:
    """What was changed and why: `granite on simulated:0: the batch is halved (32 x 512 tokens)`."""
    details = event.details
    who = " on ".join(shown(details[key]) for key in ("model", "device") if details.get(key))
    sentence = SENTENCES.get(event.kind, shown(event.kind))
    why = reason_words(details)
    return f"{f'{who}: ' if who else ''}{sentence}{f' ({why})' if why else ''}"


def reason_words(details: Mapping[str, Any]) -> str:
    """The reasons that details of a mitigation give."""
    told: set[str] = set()
    words = []
    for keys, tell in REASONS:
        values = [details.get(key) for key in keys]
        if told.isdisjoint(keys) and all(_is_plain(value) for value in values):
            told.update(keys)
            words.append(tell(*(shown(value) if isinstance(value, str) else value for value in values)))
    return "; ".join(words)


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""
