"""Where the records of a collection have their fields, counted; and chosen fields that they do not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ultimate_embedder.chunks.fields import FieldReader, UsedFields
from ultimate_embedder.chunks.record import CheckedRecord
from ultimate_embedder.errors import UsageError
from ultimate_embedder.types import Chunk, FieldsUsed


class FieldUse:
    """Counts as records are checked."""

    def __init__(self, reader: FieldReader) -> None:
        self.reader = reader
        self._used: Counter[UsedFields] = Counter()
        self._missing: Counter[str] = Counter()
        self._without: dict[str, tuple[Chunk, Any]] = {}  # the first record without a field, by its option

    def add(self, checked: CheckedRecord, value: Any) -> None:
        """Count a record."""
        if not isinstance(checked.chunk, Chunk):
            return
        self._used[checked.used] += 1
        for option in checked.missing:
            self._missing[option] += 1
            self._without.setdefault(option, (checked.chunk, value))

    def fields(self) -> tuple[FieldsUsed, ...]:
        """Where the fields were, the most frequent place first."""
        return tuple(
            FieldsUsed(text=text, ids=ids, metadata=metadata, tool=tool, records=records)
            for (tool, text, metadata, ids), records in self._used.most_common()
        )

    def require(self) -> None:
        """Raise UsageError if no record has a chosen field."""
        for option, times in self._missing.items():
            if times == self._used.total():
                raise UsageError(self.reader.missing_everywhere(option, times, self._without[option][1]))

    def warnings(self) -> Iterator[str]:
        """Say which chosen fields some of the records do not have."""
        for option, times in self._missing.items():
            first = self._without[option][0]
            have = f"{times:,} of {self._used.total():,} records have no such field"
            yield f"--{option}-field: {have}, the first of them is {first.file} record {first.position}"
