"""Texts by their number of tokens, in bins that are the same everywhere, so that counts can be added up."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ultimate_embedder.types import LengthCounts, Lengths

# the token limits of most models are edges: what is beyond them has bins of its own
LENGTH_EDGES = (
    *(8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
    *(12288, 16384, 24576, 32768, 65536, 131072, 1 << 20, 1 << 30),
)


def count_lengths(tokens: np.ndarray, over: np.ndarray, *, lost: bool) -> Lengths:
    """Count texts by their tokens; `over` are those of each beyond the limit, which are dropped if `lost`."""
    places = np.searchsorted(LENGTH_EDGES, tokens)
    counts: Lengths = {}
    for place in np.unique(places):
        here = places == place
        beyond = int(over[here].sum())
        counts[LENGTH_EDGES[min(int(place), len(LENGTH_EDGES) - 1)]] = LengthCounts(
            int(here.sum()), int((over[here] > 0).sum()), int(tokens[here].sum()), beyond if lost else 0
        )
    return counts


def add_lengths(several: Iterable[Lengths]) -> Lengths:
    """All of them together, the shortest first."""
    total: Lengths = {}
    for counts in several:
        for most, here in counts.items():
            before = total.get(most, LengthCounts(0, 0, 0, 0))
            total[most] = LengthCounts(*(one + other for one, other in zip(before, here, strict=True)))
    return dict(sorted(total.items()))
