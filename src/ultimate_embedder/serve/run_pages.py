"""What is told of the run: the live page, its state as JSON, its metrics, and the report."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from ultimate_embedder.errors import UsageError
from ultimate_embedder.markup import escaped
from ultimate_embedder.output import Output, link_target
from ultimate_embedder.report import CONTENT_TYPE, LivePage, LiveParts, prometheus_text, report_page
from ultimate_embedder.serve.answers import NOT_FOUND, ApiError, json_answer
from ultimate_embedder.serve.encoders import file_stamps
from ultimate_embedder.serve.live import LiveView
from ultimate_embedder.serve.model_states import ModelState, ModelStates

# the report is one file with its style inside, and has no script
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox"
NOT_RUNNING = ("killed", "not_running_here")


class RunPages:
    """The endpoints about the run."""

    def __init__(self, output: Output, states: ModelStates, stopping: asyncio.Event) -> None:
        self._output = output
        self._states = states
        self._page = LivePage(output)
        self._report: tuple[object, str] | None = None
        self._one_report = asyncio.Lock()
        self.live = LiveView(self._draw, stopping)

    def _draw(self) -> LiveParts:
        drawn = self._page.draw()
        return dataclasses.replace(drawn, parts={**drawn.parts, "api": draw_models(self._states.all())})

    async def state(self, request: Request) -> Response:
        """`GET /state`: the run as JSON, as `watch --json` has it."""
        drawn = await self.live.now()
        if drawn.look is None:
            raise ApiError(NOT_FOUND, "There is no event log that can be read.")
        return json_answer(drawn.look.as_dict())

    async def metrics(self, request: Request) -> Response:
        """`GET /metrics`: the run in Prometheus' text format."""
        look = (await self.live.now()).look
        if look is None:
            return Response("", media_type=CONTENT_TYPE)
        view = look.view
        if look.verdict.status in NOT_RUNNING:  # its events have no end, and a scraper would take it for running
            view = dataclasses.replace(view, status="stopped")
        return Response(prometheus_text(view), headers={"Content-Type": CONTENT_TYPE})

    async def report(self, request: Request) -> Response:
        """`GET /report`: the report, made anew from summary and events; the file in the output is not trusted."""
        async with self._one_report:
            found = await run_in_threadpool(self._made_report)
        return HTMLResponse(found, headers={"Content-Security-Policy": REPORT_POLICY})

    def _made_report(self) -> str:
        paths = [self._output.summary_path, self._output.events_path]
        for path in paths:
            if (target := link_target(path)) is not None:
                raise UsageError(f"{path.name} is a link to {target}, and links are not followed.")
        stamp = file_stamps(paths)
        if self._report is None or self._report[0] != stamp:
            self._report = (stamp, report_page(self._output))
        return self._report[1]


def draw_models(states: Sequence[ModelState]) -> str:
    """The models that the server has loaded, as HTML."""
    now = time.monotonic()
    rows = "".join(
        f"<tr><td>{escaped(state.name)}</td><td>{escaped(_in_words(state, now))}</td>"
        + "".join(f'<td class="n">{count:,}</td>' for count in (state.requests, state.texts, state.tokens))
        + "</tr>"
        for state in states
    )
    heads = "".join(f'<th class="{kind}">{word}</th>' for word, kind in HEADINGS)
    return (
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>' if rows else ""
    )


HEADINGS = (("model", ""), ("state", ""), ("requests", "n"), ("texts", "n"), ("tokens", "n"))


def _in_words(state: ModelState, now: float) -> str:
    took = f"for {now - state.since:.0f} s"
    match state.state:
        case "downloading":
            return f"downloading {took}: {state.fetched_bytes / 1e6:,.0f} of {state.total_bytes / 1e6:,.0f} MB"
        case "loading":
            return f"loading {took}"
        case "ready":
            return f"ready, loaded in {state.load_seconds:.1f} s" if state.load_seconds else "ready"
        case "failed":
            return f"failed: {state.problem}"
