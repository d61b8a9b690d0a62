"""Vectors of different models never meet in one collection of a server: it is noted there where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ultimate_embedder.errors import UploadError
from ultimate_embedder.events import Emit, Warned
from ultimate_embedder.export.origin import VectorOrigin, difference, read_origin
from ultimate_embedder.export.payloads import PLAIN
from ultimate_embedder.export.points_file import PointsFile
from ultimate_embedder.export.recorded import recorded_origin
from ultimate_embedder.export.server.calls import RECORD_KEY, Server
from ultimate_embedder.export.server.failures import shown

LOOKED_UP_POINTS = 1000
WAY_OUT = "Give another name with --collection, or delete that collection with --recreate to send everything anew."
PAYLOAD_NOTE = "payload"  # the shape of payloads, in the same note


@dataclass(frozen=True)
class CheckedOrigin:
    """Where the vectors of a points file are from, and whether the server says the same of its collection."""

    ours: VectorOrigin | None
    in_metadata: bool
    kind: dict[str, str]
    """The shape of the payloads, if it is not ours."""
    other_weights: bool = False
    """Whether the server notes other facts of sparse vectors: what words weigh follows from all chunks."""


def check_origin(file: PointsFile, target: str, server: Server, emit: Emit, *, created: bool) -> CheckedOrigin:
    """Refuse to mix vectors of different origins in one collection."""
    ours = recorded_origin(file)
    kind = {PAYLOAD_NOTE: file.kind.name} if file.kind is not PLAIN else {}  # as earlier versions note it
    noted = None if created else server.read_record(target)
    in_metadata = noted is not None
    if not created and not in_metadata:
        noted = server.marked_record(target)
    if noted is not None:
        _require_same_origin(read_origin(noted), ours, file, f"collection {target} on {server.url}")
        _require_same_payloads(noted, file, f"collection {target} on {server.url}")
    elif not created:
        _require_ours(file, target, server, emit)
    if ours is None:
        if kind:
            raise UploadError(
                f"{file.path} does not say which model its vectors are from, as an earlier version wrote it. Run the "
                f"same embed command again before --payload {file.kind.name}: it computes nothing anew."
            )
        message = f"{file.path} does not say which model its vectors are from, as an earlier version wrote it"
        emit(Warned(collection=file.collection, message=message))
    other_weights = in_metadata and ours is not None and _sparse(noted) != ours.as_record().get("sparse")
    return CheckedOrigin(ours, in_metadata, kind, other_weights)


def note_origin(origin: CheckedOrigin, target: str, server: Server) -> dict[str, Any] | None:
    """Note on the server where our vectors are from.

    Gives what each payload has to say of it where the server has no metadata for collections (before 1.16).
    """
    if origin.ours is None or (origin.in_metadata and not origin.other_weights):
        return None
    noted = server.write_record(target, origin.ours.as_record() | origin.kind)
    return None if noted else origin.ours.as_mark() | origin.kind


def _sparse(noted: Any) -> Any:
    return noted.get("sparse") if isinstance(noted, Mapping) else None


def _require_same_origin(
    there: VectorOrigin | None, ours: VectorOrigin | None, file: PointsFile, collection: str
) -> None:
    if there is None:
        raise UploadError(
            f"{collection} has a note of where its vectors are from ({RECORD_KEY}), which this program cannot read. "
            f"{WAY_OUT}"
        )
    if ours is None:
        raise UploadError(
            f"{collection} has vectors of {there}, and {file.path} does not say where its own are from, as an earlier "
            "version wrote it. Run the same embed command again, which notes it and computes nothing anew. "
            f"Otherwise: {WAY_OUT}"
        )
    if there.fingerprint != ours.fingerprint:
        raise UploadError(
            f"{collection} has vectors of {there}, and those of {file.collection} are of {ours}: they cannot be "
            f"searched together ({difference(there, ours)}). {WAY_OUT}"
        )


def _require_same_payloads(noted: Any, file: PointsFile, collection: str) -> None:
    """Programs that read one shape of payloads do not read another: they are not mixed."""
    there = noted.get(PAYLOAD_NOTE, PLAIN.name) if isinstance(noted, Mapping) else PLAIN.name
    if there != file.kind.name:
        raise UploadError(
            f"{collection} was uploaded with --payload {shown(there)}, and now it is "
            f"{file.kind.name}: points of both would be in it. {WAY_OUT}"
        )


def _require_ours(file: PointsFile, target: str, server: Server, emit: Emit) -> None:
    """For a collection that does not say where its vectors are from: it must be empty, or have points of ours."""
    total = server.count(target)
    if not total:
        return
    if not server.count(target, next(file.ids(LOOKED_UP_POINTS), [])):
        raise UploadError(
            f"collection {target} on {server.url} has {total} points, none of them of {file.collection}, and does not "
            f"say which model their vectors are from. {WAY_OUT} If ultimate-embedder has filled it, upload what it was "
            "filled from once more: then it is noted there."
        )
    message = (
        f"{target} does not say which model its vectors are from: an earlier version has filled it. All points of "
        f"{file.collection} are sent anew, others are left as they are"
    )
    emit(Warned(collection=file.collection, message=message))
