"""The search page: one question, several ways to search side by side. Works without its script, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ultimate_embedder.errors import UsageError
from ultimate_embedder.find import SCORE_FUSIONS, Hit, Hits, SearchRequest, read_recorded
from ultimate_embedder.markup import escaped
from ultimate_embedder.output import Output
from ultimate_embedder.serve.answers import ApiError, shortened
from ultimate_embedder.serve.pages import page
from ultimate_embedder.serve.search import Searching
from ultimate_embedder.serve.worker import Worker
from ultimate_embedder.terminal import counted

EVERYTHING = "all vectors"
MOST_COLUMNS = 6
MOST_SHOWN = 50  # hits of a column
FIRST_CHARACTERS = 420  # of a text; the rest is folded
MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class Choices:
    """What can be chosen on the page."""

    collections: tuple[str, ...]
    ways: tuple[str, ...]
    """Models, and `fused`, `sparse`, `hybrid` where a collection has several vectors."""
    reranker: str | None


@dataclass(frozen=True)
class Column:
    """A way to search, and what it found or why not."""

    way: str
    hits: Hits | None = None
    problem: str = ""


def find_choices(output: Output, reranker: str | None) -> Choices:
    """The collections of an output that can be searched, and the vectors that they have."""
    names, ways = [], dict[str, None]()
    for name in output.collections:
        try:
            recorded = read_recorded(output, name)
        except UsageError:
            continue
        names.append(name)
        ways.update(dict.fromkeys(recorded.label(spec.name) for spec in recorded.vectors))
        kinds = {spec.kind for spec in recorded.vectors}
        if sum(spec.kind == "dense" for spec in recorded.vectors) > 1:
            ways["fused"] = None
        if kinds == {"dense", "sparse"}:
            ways["hybrid"] = None
    return Choices(tuple(names), tuple(ways), reranker)


class SearchPage:
    """The page and its results."""

    def __init__(self, output: Output, searching: Searching, worker: Worker) -> None:
        self._output = output
        self._searching = searching
        self._worker = worker

    async def page(self, request: Request) -> Response:
        """`GET /search`: the form, with the results of what it was filled with."""
        choices = await run_in_threadpool(find_choices, self._output, self._searching.reranker)
        asked = request.query_params
        results = draw_results(await self._columns(asked)) if asked.get("q", "").strip() else ""
        body = f'{draw_form(choices, asked)}<div id="results" aria-live="polite">{results}</div>'
        return page(f"Search: {asked.get('q') or self._output.folder.name}", body, path="/search", script="search.js")

    async def results(self, request: Request) -> Response:
        """`GET /search/results`: the results alone, for the script."""
        return HTMLResponse(draw_results(await self._columns(request.query_params)))

    async def _columns(self, asked: QueryParams) -> list[Column]:
        ways = list(dict.fromkeys(asked.getlist("using")))[:MOST_COLUMNS] or [EVERYTHING]
        return [await self._column(way, asked) for way in ways]

    async def _column(self, way: str, asked: QueryParams) -> Column:
        try:
            config = await run_in_threadpool(self._searching.read, _fields(asked, way))
            return Column(way, await self._worker.run(lambda: self._searching.search(config)))
        except ApiError as error:
            return Column(way, problem=shortened(error.message))


def _fields(asked: QueryParams, way: str) -> dict[str, Any]:
    """The fields of a request, from those of the form."""
    try:
        top = min(MOST_SHOWN, int(asked.get("top") or 10))
    except ValueError:
        raise ApiError(400, "'top' must be a whole number.") from None
    return {
        "question": asked.get("q", ""),
        "top": top,
        "collection": asked.getlist("collection") or None,
        "using": None if way == EVERYTHING else [way],
        "fusion": asked.get("fusion") or None,
        "filter": [line.strip() for line in asked.get("filter", "").splitlines() if line.strip()] or None,
        "rerank": bool(asked.get("rerank")),
    }


def draw_form(choices: Choices, asked: QueryParams) -> str:
    """The form, filled as it was."""
    if not choices.collections:
        return (
            '<h1>Nothing to search yet</h1><p class="broken">No collection of this output has exports that can be '
            "searched. They are there when embed has ended.</p>"
        )
    collections = _boxes("collection", choices.collections, asked.getlist("collection"))
    ways = _boxes("using", (EVERYTHING, *choices.ways), asked.getlist("using"))
    fusion = asked.get("fusion") or SearchRequest.fusion
    fusions = "".join(f"<option{' selected' if name == fusion else ''}>{name}</option>" for name in SCORE_FUSIONS)
    rerank = ""
    if choices.reranker:
        checked = " checked" if asked.get("rerank") else ""
        box = f'<input type="checkbox" name="rerank" value="1"{checked}>'
        rerank = f"<label>{box} rerank with {escaped(choices.reranker)}</label>"
    return (
        '<form id="search" action="/search" method="get" role="search"><div class="ask">'
        f'<input type="search" name="q" value="{escaped(asked.get("q", ""))}" aria-label="question" '
        'placeholder="What do you want to find?" maxlength="4000" required autofocus><button>Search</button></div>'
        '<div class="choices">'
        + (f"<fieldset><legend>collections</legend>{collections}</fieldset>" if len(choices.collections) > 1 else "")
        + f"<fieldset><legend>search with, side by side</legend>{ways}</fieldset>"
        f'<label>fusion of scores <select name="fusion">{fusions}</select></label>'
        f'<label>hits <input type="number" name="top" min="1" max="{MOST_SHOWN}" '
        f'value="{escaped(asked.get("top") or 10)}"></label>'
        '<label>filter <textarea name="filter" rows="1" placeholder="key=value, one per line">'
        f"{_multiline(asked.get('filter', ''))}</textarea></label>{rerank}</div></form>"
    )


def _multiline(words: str) -> str:
    return "\n".join(map(escaped, words.splitlines()))


def _boxes(name: str, values: Sequence[str], chosen: Sequence[str]) -> str:
    return "".join(
        f'<label><input type="checkbox" name="{name}" value="{escaped(value)}"'
        f"{' checked' if value in chosen else ''}> {escaped(value)}</label>"
        for value in values
    )


def draw_results(columns: Sequence[Column]) -> str:
    """The columns side by side."""
    places = [_places(column) for column in columns]
    drawn = ""
    for column in columns:
        others = [(other.way, place) for other, place in zip(columns, places, strict=True) if other is not column]
        drawn += f'<section class="column"><h2>{escaped(column.way)}</h2>{_column(column, others)}</section>'
    return f'<div class="columns">{drawn}</div>'


def _places(column: Column) -> dict[str, int]:
    return {hit.point_id: hit.rank for hit in column.hits or ()}


def _column(column: Column, others: Sequence[tuple[str, Mapping[str, int]]]) -> str:
    hits = column.hits
    if hits is None:
        return f'<p class="broken">{escaped(column.problem)}</p>'
    took = sum(seconds for name, seconds in hits.seconds.items() if name not in ("open", "load"))
    about = f"{hits.using}; {counted(hits.points, 'point')}; {took * 1000:,.0f} ms"
    notes = [about, *([str(hits.reranked)] if hits.reranked else [])]
    told = "".join(f'<p class="soft">{escaped(note)}</p>' for note in notes)
    return told + ("".join(_hit(hit, hits, others) for hit in hits) or "<p>Nothing was found.</p>")


def _hit(hit: Hit, hits: Hits, others: Sequence[tuple[str, Mapping[str, int]]]) -> str:
    legs = [
        f"{escaped(leg.name)} {'–' if hit.scores.get(leg.name) is None else f'{hit.scores[leg.name]:.3f}'}"
        for leg in hits.legs
        if len(hits.legs) > 1 or hits.reranked
    ]
    before = [f"before reranking {hit.rank_before}"] if hit.rank_before is not None else []
    also = [f"no. {places[hit.point_id]} in {escaped(way)}" for way, places in others if hit.point_id in places]
    only = ["only here"] if others and not also else []
    facts = "".join(f"<span>{word}</span>" for word in [*legs, *before])
    facts += "".join(f'<span class="also">{word}</span>' for word in [*also, *only])
    where = " › ".join(map(escaped, [word for word in (hit.source, *hit.section) if word]))
    place = f"<small>{escaped(hit.collection)}</small>" if len(hits.collections) > 1 else ""
    return (
        f'<article><header><b>{hit.rank}</b><span class="score">{hit.score:.3f}</span><span>{where}</span>{place}'
        f"</header>{_text(hit.text)}<footer>{facts}<small>{escaped(hit.chunk_id)}</small></footer></article>"
    )


def _text(words: str) -> str:
    if len(words) <= FIRST_CHARACTERS:
        return f'<p class="text">{_multiline(words)}</p>'
    end = max(words.rfind(" ", 0, FIRST_CHARACTERS), FIRST_CHARACTERS // 2)  # not within a word
    rest, more = words[end:MOST_CHARACTERS], len(words) - end
    return (
        f'<p class="text">{_multiline(words[:end])} …</p>'
        f'<details><summary>{more:,} more characters</summary><p class="text">{_multiline(rest)}</p></details>'
    )
