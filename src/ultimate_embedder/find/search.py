"""Search an output: encode the question as its documents were encoded, rank, rerank, and describe what was found."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from types import TracebackType

from ultimate_embedder.events import Emit
from ultimate_embedder.find.describe import describe
from ultimate_embedder.find.filters import SAMPLED_POINTS, Condition, unknown_key
from ultimate_embedder.find.hits import Hit, Hits, Reranked, UsedLeg
from ultimate_embedder.find.legs import choose_vectors, leg_weights
from ultimate_embedder.find.opening import open_collections
from ultimate_embedder.find.options import SearchPlace, SearchRequest
from ultimate_embedder.find.places import QueryLeg
from ultimate_embedder.find.query import QueryModels
from ultimate_embedder.find.ranking import rank
from ultimate_embedder.find.rerank import Rerankers, reorder
from ultimate_embedder.find.score_fusion import Ranked
from ultimate_embedder.output import open_output


class Searcher:
    """An output that is open to be searched. Models stay loaded between questions; close it in the end."""

    def __init__(self, wanted: SearchPlace, emit: Emit = lambda event: None, models: QueryModels | None = None) -> None:
        """`models` may have been loaded by another one for the same output."""
        self._emit = emit
        self._opening = _Stopwatch()
        with self._opening.timing("open"):
            output = open_output(wanted.output)
            self._open = open_collections(output, wanted, emit)
        self._models = models or QueryModels(output.try_summary()[0], wanted.hub, wanted.model_folders)
        self._rerankers = Rerankers(wanted, emit)

    @property
    def collections(self) -> tuple[str, ...]:
        """The collections that are searched."""
        return self._open.names

    def search(self, request: SearchRequest) -> Hits:
        """The best chunks for a question."""
        watch, self._opening = self._opening, _Stopwatch()  # the next question has it for nothing
        found, top = self._open, request.top
        self._require_keys(request.conditions)
        with watch.timing("load"):  # before the search: a wrong name is known at once
            reranker = self._rerankers.load(request.rerank) if request.rerank is not None else None
        legs = self._encode(request, watch)
        depth = max(request.candidates, top)
        with watch.timing("search"):
            wanted = top if reranker is None else depth
            ranking = rank(found.place, legs, request.fusion, wanted, depth, request.conditions)
            hits = self._describe(ranking.ranked, [leg.label for leg in legs])
        reranked: Reranked | None = None
        if reranker is not None:
            with watch.timing("rerank"):
                hits, reranked = reorder(request.question, hits, reranker, top, self._emit)
        return Hits(
            question=request.question,
            hits=tuple(hits[:top]),
            collections=found.names,
            place=found.place.label,
            points=found.place.points,
            legs=tuple(UsedLeg(leg.label, leg.weight, leg.kind) for leg in legs),
            fusion=request.fusion if len(legs) > 1 else None,
            fused_by=ranking.fused_by,
            candidates=ranking.candidates,
            reranked=reranked,
            seconds=watch.seconds,
        )

    def close(self) -> None:
        """Close the places, and take a reranker off the devices."""
        self._open.place.close()
        self._rerankers.close()

    def __enter__(self) -> Searcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _require_keys(self, conditions: Sequence[Condition]) -> None:
        place = self._open.place
        for condition in conditions:
            if place.placed([condition]) is None:
                raise unknown_key(condition, place.sample(SAMPLED_POINTS))

    def _encode(self, request: SearchRequest, watch: _Stopwatch) -> list[QueryLeg]:
        """The question as each vector is searched with it."""
        recorded = self._open.recorded
        specs = choose_vectors(request.using, recorded, " and ".join(self._open.names))
        weights = leg_weights(specs, recorded, request.fusion, request.weights)
        names = [spec.name for spec in specs]
        with watch.timing("load"):
            self._models.load(recorded, names, self._emit)
        with watch.timing("encode"):
            vectors = self._models.encode_query(request.question, recorded, names)
        return [
            QueryLeg(spec.name, recorded.label(spec.name), vectors[spec.name], weight)
            for spec, weight in zip(specs, weights, strict=True)
        ]

    def _describe(self, ranked: Sequence[Ranked], labels: Sequence[str]) -> list[Hit]:
        payloads = self._open.place.payloads([each.id for each in ranked]) if ranked else []
        hits = []
        for rank_, (each, payload) in enumerate(zip(ranked, payloads, strict=True), 1):
            described = describe(payload)
            hits.append(
                Hit(
                    rank=rank_,
                    score=each.score,
                    scores=dict(zip(labels, each.leg_scores, strict=True)),
                    chunk_id=described.chunk_id,
                    point_id=self._open.place.point_id(each.id),
                    collection=described.collection,
                    source=described.source,
                    section=described.section,
                    text=described.text,
                    payload=payload,
                )
            )
        return hits


class _Stopwatch:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started
