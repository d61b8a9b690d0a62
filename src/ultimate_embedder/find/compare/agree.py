"""Compare the vectors of two sides for the texts that both have."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ultimate_embedder.find.compare.measure import Measured, measure
from ultimate_embedder.find.compare.pairing import LegPair, pair_legs
from ultimate_embedder.find.compare.result import (
    CosineSpread,
    NeighbourExample,
    NeighbourOverlap,
    ShownText,
    TextCounts,
    VectorPair,
    WorstCosine,
)
from ultimate_embedder.find.compare.side import Side
from ultimate_embedder.vectors import KeyIndex

PERCENTILES = (1, 5, 25, 50, 75, 95)
BINS = 40
MOST_EXAMPLES = 5
MOST_OTHERS = 3
NOISE = 1e-6  # what adding up float32 in another order may do to a cosine
NO_TEXT = ShownText("", "")
Key = tuple[int, int]


def compare_sides(
    a: Side, b: Side, *, sample: int, neighbours: int, seed: int = 0
) -> tuple[TextCounts, list[VectorPair]]:
    """Cosines of all common texts, and the overlap of `neighbours` nearest neighbours of a seeded `sample` of them.

    Every pair of models of the same name is compared, and all models together. Neighbours are looked for among the
    common texts, so that they can be compared whatever the models are.
    """
    common = a.keys[_index(b.keys).find(a.keys) >= 0]
    counts = TextCounts(len(a.keys), len(b.keys), len(common), _changed_ids(a, b))
    pairs = pair_legs(a.legs, b.legs, a.whole, b.whole) if len(common) else []
    measured = [(pair, measure(pair, common, sample, neighbours, seed)) for pair in pairs]
    wanted = {key for _, found in measured for key in _shown_keys(found)}
    shown = a.show(_as_array(wanted))
    shown |= b.show(_as_array(key for key in wanted if key not in shown))
    return counts, [_result(pair, found, shown) for pair, found in measured]


def _index(keys: np.ndarray) -> KeyIndex:
    index = KeyIndex()
    index.add(0, keys)
    return index


def _changed_ids(a: Side, b: Side) -> int | None:
    """Chunk ids that both have, with different texts."""
    if not len(a.id_keys) or not len(b.id_keys):
        return None
    places = _index(b.id_keys).find(a.id_keys)
    both = places >= 0
    _, rows = _index(b.id_keys).unpack(places[both])
    return int((a.text_keys[both] != b.text_keys[rows]).any(axis=1).sum())


def _as_array(keys: Iterable[Key]) -> np.ndarray:
    return np.array(sorted(keys), np.uint64).reshape(-1, 2)


def _key(found: Measured, row: int) -> Key:
    return int(found.keys[row, 0]), int(found.keys[row, 1])


def _lowest_cosines(found: Measured) -> list[int]:
    """Rows of the texts with the lowest cosines, as far as these are more than rounding."""
    if found.cosines is None:
        return []
    finite = np.flatnonzero(np.isfinite(found.cosines) & (found.cosines < 1 - NOISE))
    order = np.argsort(found.cosines[finite], kind="stable")[:MOST_EXAMPLES]
    return [int(row) for row in finite[order]]


def _shared(found: Measured) -> np.ndarray:
    """For each text of the sample, how many neighbours it has in both."""
    pairs = zip(found.nearest_a, found.nearest_b, strict=True)
    return np.array([np.isin(a[a >= 0], b).sum() for a, b in pairs], np.int64)


def _least_shared(found: Measured) -> list[tuple[int, int, list[int], list[int]]]:
    """Texts of the sample that share the fewest neighbours: how many, their rows, and rows that only one side has."""
    shared = _shared(found)
    width = found.nearest_a.shape[1]
    order = [each for each in np.argsort(shared, kind="stable")[:MOST_EXAMPLES] if shared[each] < width]
    examples = []
    for each in order:
        of_a, of_b = (nearest[each].tolist() for nearest in (found.nearest_a, found.nearest_b))
        only_a = [row for row in of_a if row not in of_b and row >= 0][:MOST_OTHERS]
        only_b = [row for row in of_b if row not in of_a and row >= 0][:MOST_OTHERS]
        examples.append((int(shared[each]), int(found.sample[each]), only_a, only_b))
    return examples


def _shown_keys(found: Measured) -> Iterable[Key]:
    yield from (_key(found, row) for row in _lowest_cosines(found))
    for _, row, only_a, only_b in _least_shared(found):
        yield from (_key(found, each) for each in (row, *only_a, *only_b))


def _result(pair: LegPair, found: Measured, shown: dict[Key, ShownText]) -> VectorPair:
    def text(row: int) -> ShownText:
        return shown.get(_key(found, row), NO_TEXT)

    return VectorPair(
        a=pair.a.name,
        b=pair.b.name,
        whole=pair.whole,
        dim_a=pair.a.dim,
        dim_b=pair.b.dim,
        texts=len(found.keys),
        unusable=found.unusable,
        cosines=_spread(found, [WorstCosine(float(found.cosines[row]), text(row)) for row in _lowest_cosines(found)])
        if found.cosines is not None
        else None,
        why_no_cosines=pair.why_no_cosines,
        neighbours=_overlap(
            found,
            [
                NeighbourExample(shared, text(row), tuple(map(text, only_a)), tuple(map(text, only_b)))
                for shared, row, only_a, only_b in _least_shared(found)
            ],
        ),
        notes=pair.notes,
    )


def _spread(found: Measured, examples: list[WorstCosine]) -> CosineSpread | None:
    """The distribution of the cosines; None if there is none."""
    if found.cosines is None or not len(cosines := found.cosines[np.isfinite(found.cosines)]):
        return None
    low = _round_below(float(cosines.min()))
    bins, _ = np.histogram(cosines, bins=BINS, range=(low, 1.0))
    return CosineSpread(
        texts=len(cosines),
        mean=float(cosines.mean(dtype=np.float64)),
        worst=float(cosines.min()),
        percentiles={f"p{each}": float(np.percentile(cosines, each)) for each in PERCENTILES},
        equal=found.equal,
        low=low,
        bins=tuple(int(count) for count in bins),
        examples=tuple(examples),
    )


def _round_below(worst: float) -> float:
    """A round number below the worst cosine, on the scale of its distance from 1."""
    distance = max(1 - worst, NOISE)
    magnitude = 10.0 ** math.floor(math.log10(distance))
    return round(1 - math.ceil(distance / magnitude - NOISE) * magnitude, 10)


def _overlap(found: Measured, examples: list[NeighbourExample]) -> NeighbourOverlap | None:
    if not len(found.sample):
        return None
    shared, width = _shared(found), found.nearest_a.shape[1]
    return NeighbourOverlap(
        neighbours=width,
        sample=len(found.sample),
        mean=float(shared.mean() / width),
        same_nearest=float((found.nearest_a[:, 0] == found.nearest_b[:, 0]).mean()),
        shared=tuple(int(count) for count in np.bincount(shared, minlength=width + 1)),
        examples=tuple(examples),
    )
