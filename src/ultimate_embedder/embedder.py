"""`Embedder`: texts in, vectors out, without files."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from ultimate_embedder.config import DEFAULT_MODEL, Companions, Overlong, Precision, RunConfig, option_list
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import Emit
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import require_backend
from ultimate_embedder.options import make_config
from ultimate_embedder.report import Listener
from ultimate_embedder.session import Session, open_session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.texts import TextEncoder, check_texts
from ultimate_embedder.types import UNNAMED

UNUSED = Path(".ultimate-embedder-unused")  # a config names an output; nothing is written there

Vectors = np.ndarray | dict[str, np.ndarray]
"""One array, or one by name of model (`fusion="named"` with several models)."""


class Embedder:
    """Models that turn texts into vectors, in memory: `Embedder("all-minilm-l6-v2").encode(["a text", "another"])`.

    It is the engine of `embed`, without files: the same batches, memory control, mitigations and checks, on all
    devices, and the same vectors. Models are loaded when it is made, and stay on the devices, where there is room for
    them, until it is closed: use it in a `with` block, or call `close()`.

    One call runs at a time: a call from another thread waits for its turn. Options are those of `embed`; in addition,
    `progress=True` shows progress bars (downloads have one in any case). Warnings, such as of truncated texts, are
    Python warnings.
    """

    def __init__(
        self,
        models: str | Iterable[str] | Mapping[str, float] = DEFAULT_MODEL,
        *,
        fusion: str = "named",
        devices: str | Iterable[str] | None = None,
        precision: Precision = "auto",
        min_cosine: float | None = None,
        backend: str | None = None,
        max_tokens: int | None = None,
        token_cap: int | None = None,
        dim: int | None = None,
        overlong: Overlong = "truncate",
        overlap: int | None = None,
        mode: str = "auto",
        companions: Companions = "spill",
        allow_missing_companions: bool = False,
        device_order: str | Iterable[str] = (),
        parallelism: str = "replicas",
        batch_tokens: str | int | Iterable[str] = (),
        batch_rows: int | None = None,
        gpu0_ceiling: str | int | None = None,
        safety_margin: str | float = "8%",
        stall_timeout: str | float | None = None,
        cache_dir: str | Path | None = None,
        offline: bool = False,
        refresh_cache: bool = False,
        trust_remote_code: str | Iterable[str] = (),
        progress: bool = False,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "progress")}
        if overlong == "split":
            raise UsageError(
                "overlong='split' makes several points of a text, and here each has one vector. Use 'pool'."
            )
        config = make_config(Path(), UNUSED, **given)
        self._progress = progress
        self._one_call = OrderedLock("embedder", Rank.CALLS)
        listener = Listener(progress)
        with listener.listening() as emit:
            self._opened: _Opened | None = _open(config, emit)
            self._fusion = self._opened.documents.load()
        listener.warn(stacklevel=3)

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(member.name for member in self._fusion.members)

    @property
    def dim(self) -> int | dict[str, int]:
        """The dimension of the vectors, or one by name of model."""
        dims = {spec.name: spec.dim or 0 for spec in self._fusion.vectors}
        return dims.get(UNNAMED, dims)

    def encode(self, texts: str | Iterable[str]) -> Vectors:
        """Vectors of documents: a float32 array with a row for each text, or a vector if `texts` is one string.

        With several models and `fusion="named"`, a dictionary of such arrays by model. Equal texts are encoded once.
        A text that cannot be encoded (None, bytes, empty) is a `UsageError` with its place, before anything is
        computed; a text for which a model gives no usable vector is a `NoVectorsError`.
        """
        return self._encode(texts, lambda opened: opened.documents, Listener(self._progress, may_pool=True))

    def encode_queries(self, texts: str | Iterable[str]) -> Vectors:
        """Vectors of queries: like `encode`, with the prompts that the models want before queries."""
        return self._encode(texts, lambda opened: opened.queries, Listener(self._progress))

    def close(self) -> None:
        """Take the models off the devices and free their memory; later calls raise `UsageError`."""
        with self._one_call:
            if self._opened is not None:
                self._opened.session.end_run()
            self._opened = None

    def __enter__(self) -> Embedder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        dims = " + ".join(f"{spec.dim}" for spec in self._fusion.vectors)
        return f"<Embedder: {', '.join(self.models)}; {dims} dims{'' if self._opened else '; closed'}>"

    def _encode(
        self, texts: str | Iterable[str], choose: Callable[[_Opened], TextEncoder], listener: Listener
    ) -> Vectors:
        single = isinstance(texts, str)
        rows = check_texts([texts] if isinstance(texts, str) else texts)
        try:
            with self._one_call, listener.listening() as emit:
                if self._opened is None:
                    raise UsageError("this Embedder is closed. Make another one.")
                vectors = choose(self._opened).encode(rows, emit, StopSwitch()) if rows else self._no_vectors()
        finally:
            listener.warn(stacklevel=4)
        vectors = {name: each[0] for name, each in vectors.items()} if single else vectors
        return vectors.get(UNNAMED, vectors)

    def _no_vectors(self) -> dict[str, np.ndarray]:
        return {spec.name: np.empty((0, spec.dim or 0), np.float32) for spec in self._fusion.vectors}


@dataclass(frozen=True)
class _Opened:
    """What an `Embedder` holds until it is closed."""

    session: Session
    documents: TextEncoder
    queries: TextEncoder


def _open(config: RunConfig, emit: Emit) -> _Opened:
    require_backend(config.backend)
    session = open_session(config, emit, StopSwitch())
    session = replace(session, config=replace(config, warm_cache=True))  # models stay in place between calls
    return _Opened(session, TextEncoder(session), TextEncoder(session, queries=True))


_OPTIONS = [name for name in inspect.signature(Embedder).parameters if name != "progress"]
Embedder.__doc__ = f"{inspect.cleandoc(Embedder.__doc__ or '')}\n\nOptions:\n{option_list(make_config, _OPTIONS)}"
