"""Rejected records by reason: reasons that differ only in numbers are one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from ultimate_embedder.summary import RejectionGroup
from ultimate_embedder.types import Rejected, RejectedGroup

MOST_GROUPS = 100  # reasons may contain keys of records, so that there may be any number of them
LINE_SUFFIXES = (".jsonl", ".ndjson")  # files in which a record is a line, also if they are compressed

_NUMBER = re.compile(r"\d[\d,]*")


class RejectionGroups:
    """Counts rejected records; where there are very many reasons, the rarer ones are not listed."""

    def __init__(self) -> None:
        self.listed: list[RejectionGroup] = []
        self._by_reason: dict[str, RejectionGroup] = {}

    def add(self, more: RejectedGroup) -> bool:
        """Count some; False if there are too many reasons."""
        key = reason_key(more.reason)
        if (group := self._by_reason.get(key)) is not None:
            group.records += more.records
            group.reason = group.reason if more.reason == group.reason else key
        elif len(self.listed) < MOST_GROUPS:
            self._by_reason[key] = RejectionGroup(**dataclasses.asdict(more))
            self.listed.append(self._by_reason[key])
        else:
            return False
        return True


def as_group(rejected: Rejected) -> RejectedGroup:
    """One record as a group. The first sentence of its reason is the reason, the rest is advice."""
    reason, _, advice = rejected.reason.partition(". ")
    return RejectedGroup(1, reason, advice, rejected.file, rejected.position)


def joined_groups(groups: Iterable[RejectedGroup]) -> tuple[RejectedGroup, ...]:
    """Those of one reason together."""
    found: dict[str, RejectedGroup] = {}
    for more in groups:
        key = reason_key(more.reason)
        known = found.get(key, dataclasses.replace(more, records=0))
        reason = known.reason if known.reason == more.reason else key
        found[key] = dataclasses.replace(known, records=known.records + more.records, reason=reason)
    return tuple(found.values())


def reason_key(reason: str) -> str:
    """The reason without its numbers: those with equal keys are one."""
    return _NUMBER.sub("N", reason)


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
