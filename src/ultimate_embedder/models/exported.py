"""Graphs of models in the cache, for the runtimes beside torch: made and checked once, in a child process.

    exported/DIGEST/model.onnx            fp32, for ONNX Runtime and OpenVINO
    exported/DIGEST/model.int8.onnx       ONNX Runtime's dynamic int8
    exported/DIGEST/model.int8.xml .bin   OpenVINO's int8 weights
    exported/DIGEST/BACKEND-DTYPE.json    what was checked, with what, and the checksums of the files

A graph is used only if its files have the checksums of the record, and the record is of the same model, versions and
processor; else it is made and compared with torch again. The child does it as exporting leaves memory behind, and as
torch's weights are not needed afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from ultimate_embedder._version import __version__
from ultimate_embedder.child import ChildNotStartedError, start_child
from ultimate_embedder.config import cache_folder
from ultimate_embedder.errors import ModelError
from ultimate_embedder.files import file_sha256
from ultimate_embedder.machine import processor_identity
from ultimate_embedder.models.int8 import BALANCED, OPENVINO
from ultimate_embedder.state import Fields, UnfitError, read_state, write_state
from ultimate_embedder.types import ResolvedModel

CHILD = "ultimate_embedder.models.export_child"
MODULES = {"onnx": "onnxruntime", "openvino": "openvino"}
TRIES = 2  # another process may be writing the same graph
GRAPH = "2"  # counts changes of how graphs are made
LARGEST_DIVISOR = 1 << 20


@dataclass(frozen=True)
class GraphWish:
    """A graph that is wanted: of which model, for which runtime, in fp32 or int8."""

    model: ResolvedModel
    backend: str
    int8: bool
    max_tokens: int | None = None
    trusted: tuple[str, ...] = ()
    token_cap: int | None = None

    @property
    def dtype(self) -> str:
        """The number format."""
        return "int8" if self.int8 else "float32"

    @property
    def folder(self) -> Path:
        """Where graphs of the model are."""
        return cache_folder() / "exported" / self.model.digest[:32]

    @property
    def plain(self) -> Path:
        """The graph in fp32."""
        return self.folder / "model.onnx"

    @property
    def path(self) -> Path:
        """The graph that the runtime opens."""
        if not self.int8:
            return self.plain
        return self.folder / ("model.int8.xml" if self.backend == "openvino" else "model.int8.onnx")

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the graph."""
        return (self.path, self.path.with_suffix(".bin")) if self.path.suffix == ".xml" else (self.path,)

    @property
    def record(self) -> Path:
        """What was checked."""
        return self.folder / f"{self.backend}-{self.dtype}.json"


@dataclass(frozen=True)
class Graph:
    """A graph that was checked. `divisor` divides the inner size of every int8 product, if there are any."""

    path: Path
    divisor: int


@dataclass(frozen=True)
class Made:
    """The child's answer: nothing, or what went wrong."""

    problem: str | None = None


def checked_graph(wish: GraphWish) -> Graph:
    """The graph, made and checked unless that was done before; raises `ModelError` if it cannot be had."""
    for _ in range(TRIES):
        if (graph := read_graph(wish)) is not None:
            return graph
        _make_in_child(wish)
    if (graph := read_graph(wish)) is not None:
        return graph
    raise ModelError(f"{wish.folder} does not keep what is written there. Delete that folder.")


def read_graph(wish: GraphWish) -> Graph | None:
    """The graph, if its record is of these conditions and its files have the checksums in it."""
    found = read_state(wish.record, lambda fields: _parse(fields, wish))
    return found if isinstance(found, Graph) else None


def write_record(wish: GraphWish, divisor: int, cosine: float) -> None:
    """Say that the graph was checked, and how near it was to torch."""
    files = {path.name: file_sha256(path) for path in wish.files}
    write_state(
        wish.record,
        {"conditions": _conditions(wish), "files": files, "divisor": divisor, "worst_cosine": cosine},
    )


def _conditions(wish: GraphWish) -> dict[str, str]:
    """What a graph and its check depend on."""
    method = {"int8": BALANCED} if wish.int8 and wish.backend == OPENVINO else {}
    return {
        **method,
        "graph": GRAPH,
        "model": wish.model.digest,
        "ultimate-embedder": __version__,
        "torch": version("torch"),
        "transformers": version("transformers"),
        "runtime": f"{wish.backend} {_runtime_version(MODULES[wish.backend])}",
        "processor": processor_identity(),
    }


def _runtime_version(module: str) -> str:
    """The version of a runtime, which other distributions may bring: onnxruntime-gpu, for example."""
    try:
        return version(module)
    except PackageNotFoundError:
        names = packages_distributions().get(module, ())
        return ", ".join(f"{name} {version(name)}" for name in names) or "unknown"


def _parse(fields: Fields, wish: GraphWish) -> Graph:
    if not fields.sealed:
        raise UnfitError("it has no checksum")
    if fields.inner("conditions").values() != _conditions(wish):
        raise UnfitError("it is of other versions, or of another machine")
    files = fields.inner("files")
    for path in wish.files:
        if not path.is_file() or file_sha256(path) != files.sha256(path.name):
            raise UnfitError(f"{path.name} is not what was checked")
    fields.number("worst_cosine")
    return Graph(wish.path, fields.count("divisor", most=LARGEST_DIVISOR))


def _make_in_child(wish: GraphWish) -> None:
    try:
        with start_child(CHILD, capture_errors=True, kill_on_error=True) as child:
            answer = child.receive() if child.send(wish) else None
    except ChildNotStartedError as error:
        raise ModelError(f"--backend {wish.backend}: no process could be started: {error}") from error
    if not isinstance(answer, Made):
        said: Sequence[str] = child.last_words.splitlines()[-1:]
        why = ": ".join(["the process that exports it has died", *said])
        raise ModelError(
            f"--backend {wish.backend}: {wish.model.name} cannot be exported ({why}). Use --backend torch."
        )
    if answer.problem is not None:
        raise ModelError(answer.problem)
