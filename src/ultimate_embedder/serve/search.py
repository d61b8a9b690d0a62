"""`POST /search`, and the same for the search page: questions over the collections of the output."""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from ultimate_embedder.errors import UltimateEmbedderError, UsageError
from ultimate_embedder.find import Hits, SearchConfig, Searcher, SearchPlace, make_search_config
from ultimate_embedder.output import Output
from ultimate_embedder.serve.answers import BAD_REQUEST, UNAVAILABLE, ApiError, json_answer, read_object
from ultimate_embedder.serve.encoders import Encoders, Stamp, read_stamp
from ultimate_embedder.serve.worker import Worker

FIELDS = ("question", "top", "collection", "using", "fusion", "weights", "candidates", "filter", "rerank")
MOST_HITS = 1000
MOST_CANDIDATES = 10_000
MOST_CONDITIONS = 100  # of a filter: each is looked for in the payloads, one after the other
MOST_VALUES = 10_000  # of all conditions
MOST_OPEN = 8  # a shard that is open has a copy on disk


class Searching:
    """Searches on the thread that computes; collections stay open for the next question."""

    def __init__(self, encoders: Encoders, place: SearchPlace, reranker: str | None) -> None:
        self.reranker = reranker
        self._output = Output(place.output)
        self._encoders = encoders
        self._place = place
        self._open: OrderedDict[tuple[str, ...], tuple[Stamp, Searcher]] = OrderedDict()

    def search(self, config: SearchConfig) -> Hits:
        """The hits of a question; raises `ApiError`."""
        try:
            with self._encoders.states.watching():
                return self._searcher(config).search(config.request)
        except UsageError as error:
            raise ApiError(BAD_REQUEST, as_fields(str(error))) from error
        except UltimateEmbedderError as error:
            raise ApiError(UNAVAILABLE, as_fields(str(error))) from error

    def close(self) -> None:
        """Close what is open; copies of shards are deleted."""
        while self._open:
            self._open.popitem()[1][1].close()

    def read(self, fields: Mapping[str, Any]) -> SearchConfig:
        """Check the fields of a question; raises `ApiError`."""
        if unknown := sorted(set(fields) - set(FIELDS)):
            known = ", ".join(FIELDS)
            raise ApiError(BAD_REQUEST, f"There is no field {unknown[0]!r}. The fields are: {known}.", param=unknown[0])
        given = {name: value for name, value in fields.items() if value is not None}
        _refuse_large_filter(given.get("filter"))
        for name, most in (("top", MOST_HITS), ("candidates", MOST_CANDIDATES)):
            if isinstance(given.get(name), int) and given[name] > most:
                raise ApiError(BAD_REQUEST, f"{name!r} is {most:,} at most.", param=name)
        if given.pop("rerank", False):
            if self.reranker is None:
                message = "'rerank': the server was started without a reranker. Start it with --rerank MODEL."
                raise ApiError(BAD_REQUEST, message, param="rerank")
            given["rerank"] = self.reranker
        try:
            config = make_search_config(self._output.folder, given.pop("question", ""), **given)
            names = tuple(dict.fromkeys(config.place.collections))  # the same one twice would be opened twice
            for name in names:  # each must be one, before its name becomes a path
                self._output[name]
        except UsageError as error:
            raise ApiError(BAD_REQUEST, as_fields(str(error))) from error
        return dataclasses.replace(config, place=dataclasses.replace(self._place, collections=names))

    def _searcher(self, config: SearchConfig) -> Searcher:
        names = config.place.collections
        stamp = read_stamp(self._output, names or None)
        known = self._open.pop(names, None)
        if known is not None and known[0] != stamp:  # a run has written other points
            known[1].close()
            known = None
        if known is None:
            while len(self._open) >= MOST_OPEN:
                self._open.popitem(last=False)[1][1].close()
            known = stamp, Searcher(config.place, self._encoders.states, self._encoders.models())
        self._open[names] = known
        return known[1]


def _refuse_large_filter(given: Any) -> None:
    """The engine keeps all threads waiting while it works, so it must not be given work for minutes."""
    conditions = given if isinstance(given, list | dict) else [given]
    values = given.values() if isinstance(given, dict) else conditions
    count = sum(len(each) if isinstance(each, list) else str(each).count(",") + 1 for each in values)
    if len(conditions) > MOST_CONDITIONS or count > MOST_VALUES:
        message = f"'filter' has {MOST_CONDITIONS} conditions and {MOST_VALUES:,} values at most."
        raise ApiError(BAD_REQUEST, message, param="filter")


def as_fields(message: str) -> str:
    """A message about options of the command line as one about fields of a request."""
    return re.sub(r"--([a-z]+)\b", lambda found: f"'{found[1]}'" if found[1] in FIELDS else found[0], message)


class SearchApi:
    """The endpoint."""

    def __init__(self, searching: Searching, worker: Worker) -> None:
        self._searching = searching
        self._worker = worker

    async def search(self, request: Request) -> Response:
        """`POST /search`."""
        config = await run_in_threadpool(self._searching.read, await read_object(request))
        hits = await self._worker.run(lambda: self._searching.search(config))
        return json_answer(hits.as_dict())
