"""Split the chunks of a collection that are too long for one of its models, before anything is encoded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ultimate_embedder.chunks import LoadedChunks, split_chunks
from ultimate_embedder.events import ChunksSplit
from ultimate_embedder.models import SegmentCutter
from ultimate_embedder.planning import PassPlan
from ultimate_embedder.session import Session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import Segment


class EnsembleSplitter:
    """Splits texts so that the segments fit every model: all models of an ensemble have the same points."""

    def __init__(self, cutters: Sequence[SegmentCutter], stop: StopSwitch) -> None:
        self._stop = stop
        self._cutters = sorted(cutters, key=lambda cutter: cutter.max_tokens)  # then most segments fit the others

    def overlong(self, texts: Sequence[str]) -> np.ndarray:
        """Which texts are too long for any of the models."""
        self._stop.check()
        return np.asarray(np.logical_or.reduce([cutter.overlong(texts) for cutter in self._cutters]))

    def split(self, text: str) -> tuple[Segment, ...]:
        """Segments for the model with the lowest limit; what does not fit the next model is cut again."""
        self._stop.check()
        segments: tuple[Segment, ...] = (Segment(0, len(text)),)
        for cutter in self._cutters:
            too_long = cutter.overlong([text[each.start : each.end] for each in segments])
            segments = tuple(
                part
                for segment, is_long in zip(segments, too_long, strict=True)
                for part in (_cut_again(text, segment, cutter) if is_long else (segment,))
            )
        return segments


def _cut_again(text: str, segment: Segment, cutter: SegmentCutter) -> list[Segment]:
    start = segment.start
    parts = cutter.cut(text[start : segment.end]).segments
    return [Segment(start + part.start, start + part.end) for part in parts]


def split_overlong(
    loaded: LoadedChunks, spool: Path, plans: Sequence[PassPlan], collection: str, session: Session
) -> LoadedChunks:
    """The chunks, each in segments that fit all models; the models are loaded for their tokenizers."""
    # counting words needs no limit
    cutters = [SegmentCutter(session.load(plan), session.config.overlap) for plan in plans if not plan.counts_words]
    started = time.perf_counter()
    split = split_chunks(loaded, spool, EnsembleSplitter(cutters, session.stop))
    session.emit(
        ChunksSplit(
            collection=collection,
            chunks=split.split.chunks,
            segments=split.split.segments,
            distinct_texts=split.table.distinct_texts(),
            seconds=time.perf_counter() - started,
        )
    )
    return split
