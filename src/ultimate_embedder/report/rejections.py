"""Rejected records by reason: reasons that differ only in numbers are one."""

from __future__ import annotations

import re

from ultimate_embedder.summary import RejectionGroup
from ultimate_embedder.types import Rejected

MOST_GROUPS = 100  # reasons may contain keys of records, so that there may be any number of them
LINE_SUFFIXES = (".jsonl", ".ndjson")  # files in which a record is a line, also if they are compressed

_NUMBER = re.compile(r"\d[\d,]*")


class RejectionGroups:
    """Counts rejected records; where there are very many reasons, the rarer ones are not listed."""

    def __init__(self) -> None:
        self.listed: list[RejectionGroup] = []
        self._by_reason: dict[str, RejectionGroup] = {}

    def add(self, rejected: Rejected) -> None:
        """Count one. The first sentence of its reason is the reason, the rest is advice."""
        reason, _, advice = rejected.reason.partition(". ")
        without_numbers = _NUMBER.sub("N", reason)
        if (group := self._by_reason.get(without_numbers)) is not None:
            group.records += 1
            group.reason = reason if reason == group.reason else without_numbers
        elif len(self.listed) < MOST_GROUPS:
            place = {"file": rejected.file, "position": rejected.position}
            group = RejectionGroup(records=1, reason=reason, advice=advice, **place)
            self._by_reason[without_numbers] = group
            self.listed.append(group)


def in_words(group: RejectionGroup) -> str:
    """What was rejected, where, why, and what to do."""
    if group.records == 1:
        said = f"{_place(group)}: {group.reason}"
    else:
        said = f"{group.records:,} x {group.reason}, first at {_place(group)}"
    return f"{said}. {group.advice}" if group.advice else said


def _place(group: RejectionGroup) -> str:
    if group.position is None:
        return group.file
    if any(suffix in group.file.lower() for suffix in LINE_SUFFIXES):
        return f"{group.file}:{group.position + 1}"
    return f"{group.file} record {group.position}"
