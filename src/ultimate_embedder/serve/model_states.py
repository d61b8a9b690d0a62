"""What the page shows of the models that the server has loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.events import Event, ModelBytesFetched, ModelFetchStarted, ModelLoadStarted


@dataclass(frozen=True)
class ModelState:
    """A model, and what was done with it."""

    name: str
    state: Literal["downloading", "loading", "ready", "failed"]
    since: float
    """When the state began, by the clock of `time.monotonic`."""
    fetched_bytes: int = 0
    total_bytes: int = 0
    load_seconds: float = 0.0
    problem: str = ""
    requests: int = 0
    texts: int = 0
    tokens: int = 0


class ModelStates:
    """Written by the thread that computes, read by any: each state is replaced as a whole."""

    def __init__(self) -> None:
        self._states: dict[str, ModelState] = {}

    def all(self) -> tuple[ModelState, ...]:
        """The models that were asked for, in that order."""
        return tuple(self._states.copy().values())

    def __call__(self, event: Event) -> None:
        """Take an event of finding or loading a model."""
        now = time.monotonic()
        if isinstance(event, ModelFetchStarted):
            self._states[event.model] = ModelState(event.model, "downloading", now, total_bytes=event.size_bytes)
        elif isinstance(event, ModelBytesFetched) and (state := self._states.get(event.model)):
            fetched = state.fetched_bytes + event.size_bytes
            self._states[event.model] = dataclasses.replace(state, fetched_bytes=fetched)
        elif isinstance(event, ModelLoadStarted):
            self._states[event.model] = ModelState(event.model, "loading", now)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """What was loading is ready when the block ends, or has failed with its error."""
        try:
            yield
        except UltimateEmbedderError as error:
            self._end("failed", str(error))
            raise
        except BaseException as error:
            self._end("failed", type(error).__name__)
            raise
        self._end("ready")

    def count(self, name: str, texts: int, tokens: int) -> None:
        """A model has encoded texts."""
        state = self._states.get(name) or ModelState(name, "ready", time.monotonic())
        self._states[name] = dataclasses.replace(
            state, requests=state.requests + 1, texts=state.texts + texts, tokens=state.tokens + tokens
        )

    def _end(self, how: Literal["ready", "failed"], problem: str = "") -> None:
        now = time.monotonic()
        for name, state in self._states.items():
            if state.state in ("downloading", "loading"):
                took = now - state.since
                self._states[name] = dataclasses.replace(
                    state, state=how, since=now, load_seconds=took, problem=problem
                )
