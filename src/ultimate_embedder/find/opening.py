"""Open what is to be searched: the collections of an output, in their shards, in files, or on a server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ultimate_embedder.config import retry_policy
from ultimate_embedder.errors import UltimateEmbedderError, UploadError, UsageError
from ultimate_embedder.events import Emit, Warned
from ultimate_embedder.export import ServerAddress, read_export_journal, read_origin, read_uploads
from ultimate_embedder.find.options import SearchPlace
from ultimate_embedder.find.places import MergedPlace, Place, open_edge, open_exact
from ultimate_embedder.find.recorded import RecordedVectors, read_recorded
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.state import Damaged

UPLOAD_FIRST = "Upload it first: ultimate-embedder upload"


@dataclass(frozen=True)
class OpenCollections:
    """Collections that are open to be searched together, and how their vectors were made."""

    names: tuple[str, ...]
    recorded: RecordedVectors
    place: Place


@dataclass(frozen=True)
class _Opened:
    name: str
    recorded: RecordedVectors
    place: Place


def open_collections(output: Output, wanted: SearchPlace, emit: Emit) -> OpenCollections:
    """Open collections of an output; several must be of the same models, so that their scores can be compared."""
    names = wanted.collections or tuple(output.collections)
    if not names:
        raise UsageError(
            f"{output.folder} has no collections with vectors. Run embed, or resume a run that was stopped."
        )
    with ExitStack() as stack:
        opened, failures = [], dict[str, UltimateEmbedderError]()
        for name in dict.fromkeys(names):
            try:
                found = _open(output, name, wanted, emit)
            except UltimateEmbedderError as error:
                if wanted.collections:
                    raise
                failures[name] = error
                continue
            stack.callback(found.place.close)
            opened.append(found)
        for name, failure in failures.items():
            if not opened:
                raise failure
            emit(Warned(collection=name, message=f"left out: {failure}"))
        _require_same_models(opened)
        stack.pop_all()
    place = opened[0].place if len(opened) == 1 else MergedPlace([each.place for each in opened])
    return OpenCollections(tuple(each.name for each in opened), opened[0].recorded, place)


def _open(output: Output, name: str, wanted: SearchPlace, emit: Emit) -> _Opened:
    collection = output[name]
    if wanted.server is not None:
        recorded = read_recorded(output, name)
        return _Opened(name, recorded, _open_server(collection, recorded, wanted.server, wanted.target))
    if collection.qdrant.is_dir():
        try:
            return _Opened(name, read_recorded(output, name, ["qdrant"]), open_edge(collection))
        except UltimateEmbedderError as error:  # the shard, or what says how its vectors were made
            if not collection.points_file.exists():
                raise
            emit(Warned(collection=name, message=f"{error} {collection.points_file} is searched instead."))
    return _Opened(name, read_recorded(output, name, ["parquet"]), open_exact(collection))


def _require_same_models(opened: Sequence[_Opened]) -> None:
    made = {each.name: _meaning(each.recorded) for each in opened}
    if len(set(made.values())) == 1:
        return
    models = [f"{each.name} ({' and '.join(model.name for model in each.recorded.models)})" for each in opened]
    raise UsageError(
        f"these collections have vectors of different models, whose scores cannot be compared: {', '.join(models)}. "
        f"Choose with --collection {opened[0].name}."
    )


def _meaning(recorded: RecordedVectors) -> Any:
    """What must be equal so that scores can be compared; the precision need not be."""
    models = tuple((model.name, model.digest, model.dim) for model in recorded.models)
    sparse = tuple((facts.name, facts.digest, facts.modifier) for facts in recorded.sparse)
    return models, recorded.fusion, recorded.vectors, sparse


def _open_server(
    collection: CollectionOutput, recorded: RecordedVectors, address: ServerAddress, target: str | None
) -> Place:
    from ultimate_embedder.export import Server, connect  # qdrant-client takes a second to import
    from ultimate_embedder.find.places.server import ServerPlace

    name = target or _recorded_target(collection, address)
    with ExitStack() as stack:
        connection = stack.enter_context(connect(address))
        server = Server(connection, address.url, lambda event: None, retry_policy())
        if not server.exists(name):
            raise UploadError(
                f"there is no collection {name} on {address.url}. {UPLOAD_FIRST} {collection.folder} --url "
                f"{address.url}. If it has another name there, give it with --target."
            )
        there = read_origin(server.read_record(name) or server.marked_record(name))
        if there is not None and recorded.fingerprint is not None and there.fingerprint != recorded.fingerprint:
            raise UploadError(
                f"{name} on {address.url} has vectors of {there}, and {collection.folder} has others: a question "
                f"would be encoded by the wrong models. {UPLOAD_FIRST} {collection.folder} --url {address.url}, or "
                "search the output that was uploaded."
            )
        version, points = server.version(), server.count(name)
        return ServerPlace(server, name, version, points, stack.pop_all())


def _recorded_target(collection: CollectionOutput, address: ServerAddress) -> str:
    """The alias or collection that the last upload to that server filled; else the name that an upload would choose."""
    uploads = read_uploads(collection.folder)
    if isinstance(uploads, tuple) and not isinstance(uploads, Damaged):
        here = [each for each in uploads if each.url.rstrip("/") == address.url.rstrip("/")]
        if here:
            return here[-1].alias or here[-1].target
    journal = read_export_journal(collection.folder)
    for kind in ("parquet", "qdrant", "npy"):
        if target := journal.get(kind, {}).get("target"):
            return str(target)
    raise UsageError(f"{collection.folder} does not say which collection of a server it fills. Give it with --target.")
