"""The models of an output, loaded on first use, and what they have done."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.find import QueryEncoder, open_query_encoder
from ultimate_embedder.output import Output
from ultimate_embedder.serve.catalogue import Catalogue, ServedVector, make_catalogue
from ultimate_embedder.types import UNNAMED
from ultimate_embedder.vectors import shorten

InputType = Literal["query", "document"]
INPUT_TYPES: tuple[InputType, ...] = ("query", "document")


@dataclass(frozen=True)
class Encoded:
    """Vectors of texts, a row for each; the tokens that were computed, and texts that were longer than the limit."""

    vectors: np.ndarray
    tokens: int
    truncated: int


@dataclass(frozen=True)
class EncoderState:
    """What the page shows of the models of a vector."""

    models: tuple[str, ...]
    state: Literal["loading", "ready", "failed"]
    detail: str = ""
    seconds: float = 0.0
    requests: int = 0
    texts: int = 0
    tokens: int = 0


class Encoders:
    """Encodes texts as those of the output were: `encode` is called on one thread, the others on any."""

    def __init__(self, output: Output, access: HubAccess) -> None:
        self._output = output
        self._access = access
        self._known: tuple[tuple[int, ...] | None, Catalogue | None] = (None, None)
        self._loaded: dict[tuple[object, ...], QueryEncoder] = {}
        self._states: dict[tuple[object, ...], EncoderState] = {}

    @property
    def states(self) -> tuple[EncoderState, ...]:
        """The models that were asked for."""
        return tuple(self._states.copy().values())

    def catalogue(self) -> Catalogue | None:
        """What can be asked for; None before the first run has ended. While another run goes on: as it was before."""
        found = _stamp(self._output)
        if found is not None and found != self._known[0]:  # two threads may both read it: the result is the same
            summary = self._output.read_summary()
            if summary is not None:
                self._known = (found, make_catalogue(summary))
        return self._known[1]

    def encode(self, vector: ServedVector, texts: Sequence[str], kind: InputType, dim: int | None) -> Encoded:
        """Vectors of texts; the first call for a vector loads its models."""
        encoder = self._encoder(vector)
        by_name = encoder.encode_queries(texts) if kind == "query" else encoder.encode_documents(texts)
        (found,) = by_name.values()
        tokens, truncated = _count(encoder, texts, kind)
        state = self._states[vector.recipe]
        self._states[vector.recipe] = dataclasses.replace(
            state, requests=state.requests + 1, texts=state.texts + len(texts), tokens=state.tokens + tokens
        )
        return Encoded(found if dim in (None, vector.dim) else shorten(found, dim), tokens, truncated)

    def _encoder(self, vector: ServedVector) -> QueryEncoder:
        if vector.recipe in self._loaded:
            return self._loaded[vector.recipe]
        self._forget_old()
        state = EncoderState(vector.models, "loading")
        self._states[vector.recipe] = state
        started = time.perf_counter()
        try:
            opened = open_query_encoder(self._output, vector.collection, self._access)
        except UltimateEmbedderError as error:
            self._states[vector.recipe] = dataclasses.replace(state, state="failed", detail=str(error))
            raise
        encoder = opened.only(vector.vector) if vector.vector != UNNAMED else opened
        self._loaded[vector.recipe] = encoder
        seconds = time.perf_counter() - started
        self._states[vector.recipe] = dataclasses.replace(state, state="ready", seconds=seconds)
        return encoder

    def _forget_old(self) -> None:
        """Drop models of which the output has no vectors any more."""
        catalogue = self._known[1]
        known = {vector.recipe for vector in catalogue.vectors} if catalogue else set()
        for recipe in [each for each in self._states if each not in known]:
            self._loaded.pop(recipe, None)
            self._states.pop(recipe, None)


def _count(encoder: QueryEncoder, texts: Sequence[str], kind: InputType) -> tuple[int, int]:
    """Tokens of all models, and texts of which a part was left out."""
    tokens, truncated = 0, 0
    cutters = encoder.cutters or [None] * len(encoder.encoders)
    for each, cutter in zip(encoder.encoders, cutters, strict=True):
        tokenized = (each.for_queries() if kind == "query" else each).tokenize(texts)
        is_pooled = kind == "document" and cutter is not None
        tokens += int((tokenized.text_tokens if is_pooled else tokenized.lengths).sum())
        truncated = max(truncated, 0 if is_pooled else int(tokenized.overlong.sum()))
    return tokens, truncated


def _stamp(output: Output) -> tuple[int, ...] | None:
    """What changes when a summary is written; None if there is none."""
    try:
        found = output.summary_path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
