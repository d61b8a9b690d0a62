"""One thread computes, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import OpenClient
from ultimate_embedder.serve import worker as module
from ultimate_embedder.serve.answers import ApiError
from ultimate_embedder.serve.encoders import Encoders
from ultimate_embedder.serve.worker import Worker
from ultimate_embedder.stop import has_abandoned_threads


def test_jobs_run_one_after_the_other_and_errors_reach_who_waits() -> None:
    worker, seen = Worker(), []

    def job(number: int) -> int:
        seen.append((number, threading.current_thread().name))
        if number == 1:
            raise ValueError("one")
        return number

    async def run() -> list[Any]:
        return await asyncio.gather(
            *(worker.run(functools.partial(job, number)) for number in range(3)), return_exceptions=True
        )

    results = asyncio.run(run())
    assert (results[0], results[2]) == (0, 2)
    assert isinstance(results[1], ValueError)
    assert seen == [(number, "serve-encoder") for number in range(3)]
    worker.leave(lambda: seen.append((9, "last")))
    assert seen[-1] == (9, "last")


def test_too_many_waiting_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    worker, go = Worker(), threading.Event()

    async def run() -> None:
        waiting = [asyncio.ensure_future(worker.run(go.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="requests are waiting"):
            await asyncio.gather(*(worker.run(go.wait) for _ in range(4)))
        go.set()
        await asyncio.gather(*waiting)

    asyncio.run(run())


def test_a_job_that_hangs_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVE_S", 0.05)
    worker, go = Worker(), threading.Event()

    async def run() -> None:
        job = asyncio.ensure_future(worker.run(go.wait))
        await asyncio.sleep(0.05)
        assert not job.done()

    asyncio.run(run())
    worker.leave(lambda: None)
    assert has_abandoned_threads()
    go.set()
    assert worker._thread is not None
    worker._thread.join(60)
    assert not has_abandoned_threads()


def test_the_page_does_not_wait_for_a_slow_request(
    open_client: OpenClient, served_output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, encode = threading.Event(), threading.Event(), Encoders.encode

    def slow(*arguments: Any) -> Any:
        begun.set()
        go.wait(60)
        return encode(*arguments)

    monkeypatch.setattr(Encoders, "encode", slow)
    with ThreadPoolExecutor(1) as pool, open_client(served_output) as client:
        body = {"model": "tiny-bert", "input": "a fox"}
        answer = pool.submit(client.post, "/v1/embeddings", json=body)
        assert begun.wait(60)
        for path in ("/", "/state", "/v1/models", "/search"):
            assert client.get(path).status_code == 200
        assert not answer.done()
        go.set()
        assert answer.result(60).status_code == 200
