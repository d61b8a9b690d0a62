"""The models of an output, loaded on first use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ultimate_embedder.config import HubAccess
from ultimate_embedder.find import QueryModels, RecordedModel, encode_texts
from ultimate_embedder.models import SegmentCutter
from ultimate_embedder.output import Output
from ultimate_embedder.serve.catalogue import Catalogue, ServedVector, read_catalogue
from ultimate_embedder.serve.model_states import ModelStates
from ultimate_embedder.types import UNNAMED
from ultimate_embedder.vectors import shorten

InputType = Literal["query", "document"]
INPUT_TYPES: tuple[InputType, ...] = ("query", "document")
Stamp = tuple[object, ...]


@dataclass(frozen=True)
class Encoded:
    """Vectors of texts, a row for each; the tokens that were computed, and texts that were longer than the limit."""

    vectors: np.ndarray
    tokens: int
    truncated: int


class Encoders:
    """Encodes texts as those of the output were: `encode` is called on one thread, the others on any."""

    def __init__(self, output: Output, access: HubAccess, folders: Sequence[str] = ()) -> None:
        """`folders` are those of models that are not where embed found them."""
        self._output = output
        self._access = access
        self._folders = folders
        self._known: tuple[Stamp, Catalogue] | None = None
        self._models: tuple[frozenset[RecordedModel], QueryModels] | None = None
        self.states = ModelStates()

    def catalogue(self) -> Catalogue:
        """What can be asked for, as the files of the output say now."""
        found = read_stamp(self._output)
        if self._known is None or found != self._known[0]:  # two threads may both read it: the result is the same
            self._known = (found, read_catalogue(self._output))
        return self._known[1]

    def models(self) -> QueryModels:
        """The models of the output; loaded ones are kept until the output has others."""
        wanted = self.catalogue().models
        if self._models is None or self._models[0] != wanted:
            summary, _ = self._output.try_summary()
            self._models = (wanted, QueryModels(summary, self._access, self._folders))
        return self._models[1]

    def encode(self, vector: ServedVector, texts: Sequence[str], kind: InputType, dim: int | None) -> Encoded:
        """Vectors of texts; the first call for a model loads it."""
        with self.states.watching():
            made = [self._encode(model, texts, kind) for model in vector.models]
        vectors = made[0].vectors
        if vector.fusion is not None:
            vectors = vector.fusion.fuse([each.vectors for each in made])[UNNAMED]
        return Encoded(
            vectors if dim in (None, vector.dim) else shorten(vectors, dim),
            sum(each.tokens for each in made),
            max(each.truncated for each in made),
        )

    def _encode(self, model: RecordedModel, texts: Sequence[str], kind: InputType) -> Encoded:
        encoder = self.models().encoder(model, self.states)
        cutter = SegmentCutter(encoder, model.overlap) if model.pools and kind == "document" else None
        encoder = encoder.for_queries() if kind == "query" else encoder
        vectors = encode_texts(encoder, texts, model.dim, cutter)
        tokenized = encoder.tokenize(texts)
        tokens = int((tokenized.text_tokens if cutter else tokenized.lengths).sum())
        self.states.count(model.name, len(texts), tokens)
        return Encoded(vectors, tokens, 0 if cutter else int(tokenized.overlong.sum()))


def read_stamp(output: Output, collections: Sequence[str] | None = None) -> Stamp:
    """What changes when a run writes what tells how vectors were made, or writes the exports."""
    places = [output.summary_path]
    for name in output.collections if collections is None else collections:
        own = output.collection(name)
        places += [own.export_journal, own.points_file]
    return file_stamps(places)


def file_stamps(paths: Iterable[Path]) -> Stamp:
    """What changes when one of these files is written, appears or is deleted."""
    found: list[object] = []
    for path in paths:
        try:
            about = path.stat()
            found.append((str(path), about.st_ino, about.st_size, about.st_mtime_ns))
        except OSError:
            found.append(str(path))
    return tuple(found)
