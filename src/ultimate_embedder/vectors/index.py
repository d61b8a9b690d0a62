"""An index from keys to rows in shards, in a few bytes per key."""

from __future__ import annotations

import numpy as np

_SHARD_SHIFT = 32  # a place is shard << 32 | row


class KeyIndex:
    """Maps 128-bit keys to rows in shards; 24 bytes per key, sorted lazily."""

    def __init__(self) -> None:
        self._high = np.empty(0, np.uint64)
        self._low = np.empty(0, np.uint64)
        self._places = np.empty(0, np.int64)
        self._added: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, shard: int, keys: np.ndarray) -> None:
        """Add the keys of a shard, in the order of its rows."""
        places = (np.int64(shard) << _SHARD_SHIFT) + np.arange(len(keys), dtype=np.int64)
        self._added.append((np.array(keys, np.uint64), places))

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The place of each key, or -1."""
        self._sort()
        places = np.full(len(keys), -1, np.int64)
        if not len(self._high) or not len(keys):
            return places
        high, low = keys[:, 0], keys[:, 1]
        at = np.searchsorted(self._high, high)
        open_ = np.ones(len(keys), bool)
        while open_.any():  # more than one iteration only if two keys share their first 64 bits
            open_ &= at < len(self._high)
            candidates = np.where(open_, at, 0)
            open_ &= self._high[candidates] == high
            found = open_ & (self._low[candidates] == low)
            places[found] = self._places[candidates[found]]
            open_ &= ~found
            at += 1
        return places

    def unpack(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split places into shard numbers and row numbers."""
        return places >> _SHARD_SHIFT, places & ((1 << _SHARD_SHIFT) - 1)

    def _sort(self) -> None:
        if not self._added:
            return
        keys = np.concatenate([np.stack([self._high, self._low], 1), *(keys for keys, _ in self._added)])
        places = np.concatenate([self._places, *(places for _, places in self._added)])
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        self._high, self._low = keys[order, 0].copy(), keys[order, 1].copy()
        self._places = places[order]
        self._added = []
