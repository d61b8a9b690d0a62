"""Upload collections to a Qdrant server: resumable, no duplicate points, counted at the end."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from qdrant_client import QdrantClient, models

from ultimate_embedder.config import retry_policy
from ultimate_embedder.errors import UploadError, UsageError
from ultimate_embedder.events import BatchUploaded, Emit, UploadFinished, UploadStarted, Warned
from ultimate_embedder.export.points import LONGEST_NAME
from ultimate_embedder.export.points_file import PointsFile
from ultimate_embedder.export.recorded import recorded_checksum
from ultimate_embedder.export.server_calls import RECORD_KEY, Server, payload_digest
from ultimate_embedder.export.server_origin import check_origin
from ultimate_embedder.export.upload_state import UploadJournal, drop_damaged_upload_state
from ultimate_embedder.files import file_sha256
from ultimate_embedder.names import name_problem
from ultimate_embedder.output import CollectionOutput, Output, link_target
from ultimate_embedder.retry import RetryPolicy
from ultimate_embedder.types import UNNAMED

BATCH_POINTS = 128
COUNT_POINTS = 1000
READ_BACK_POINTS = 16  # spread over the file
REQUEST_BYTES = 16 << 20  # half of Qdrant's default limit
NUMBER_BYTES = 22  # a float32 in JSON, at most
TIMEOUT_S = 60
LONGEST_NAME_BYTES = 4 * LONGEST_NAME  # the server counts characters


@dataclass(frozen=True)
class UploadReport:
    """The result of an upload."""

    collection: str
    target: str
    points: int
    counted: int
    resumed_at: int


def upload(
    folder: Path,
    url: str,
    emit: Emit,
    target: str | None = None,
    api_key: str | None = None,
    policy: RetryPolicy | None = None,
) -> list[UploadReport]:
    """Upload every collection in `folder` (or `folder` itself, if it is one) to the Qdrant server at `url`."""
    if target is not None and (problem := name_problem(target, longest_bytes=LONGEST_NAME_BYTES)):
        raise UsageError(f"--collection {target!r} {problem}. Choose another name.")
    files = [PointsFile.open(path) for path in _find_points(folder)]
    if target is not None and len(files) > 1:
        names = ", ".join(file.collection for file in files)
        raise UploadError(
            f"{folder} has several collections ({names}), but --collection names one target. "
            f"Upload them one by one: {folder / files[0].collection}"
        )
    targets = [target or _own_target(file) for file in files]
    checksums = [_check(file, emit) for file in files]  # all of them, before anything is sent
    url, user = _without_user(url)
    client = _connect(url, user, api_key)
    try:
        server = Server(client, url, emit, policy or retry_policy())
        return [
            _upload_one(file, checksum, name, server, emit)
            for file, checksum, name in zip(files, checksums, targets, strict=True)
        ]
    finally:
        client.close()


def _check(file: PointsFile, emit: Emit) -> str:
    """The checksum of a file; refuses one that is not as it was written."""
    checksum, recorded = file_sha256(file.path), recorded_checksum(file.path)
    if recorded is None:
        message = f"{file.path} is sent unchecked: its checksum is not recorded beside it, nor in a summary"
        emit(Warned(collection=file.collection, message=message))
    elif checksum != recorded:
        raise UploadError(
            f"{file.path} is damaged or was changed: its checksum is not the one that embed recorded. Nothing was "
            "sent. Run the same embed command again to write it anew: vectors that are stored are not computed again."
        )
    return checksum


def _without_user(url: str) -> tuple[str, str | None]:
    """A URL without user and password, which are neither printed nor stored, and both in one word; None without any."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    user, at, place = rest.rpartition("@")
    if "/" in user:
        raise UsageError("--url has an @ after a /. In a user name or password write %40 for @, and %2F for /.")
    return f"{scheme}{mark}{place}", user if at else None


def _connect(url: str, user: str | None, api_key: str | None) -> QdrantClient:
    signed_in = base64.b64encode(unquote(user).encode()).decode() if user is not None else None
    headers = {"Authorization": f"Basic {signed_in}"} if signed_in is not None else {}
    try:
        return QdrantClient(url=url, api_key=api_key, timeout=TIMEOUT_S, check_compatibility=False, metadata=headers)
    except ValueError as error:  # urllib3's LocationParseError is one too
        raise UsageError(f"--url {url}: {error}. Write http://localhost:6333, for example.") from error


def _own_target(file: PointsFile) -> str:
    if problem := name_problem(file.target, longest_bytes=LONGEST_NAME_BYTES):
        raise UploadError(
            f"{file.path} is for a collection {file.target!r}, which {problem}. Give a name with --collection."
        )
    return file.target


def _find_points(folder: Path) -> list[Path]:
    here = CollectionOutput(folder).points
    found = [here] if here.exists() else [each.points for each in Output(folder) if each.points.exists()]
    for path in found if here not in found else ():
        if target := link_target(path.parent):  # how far it got would be written there
            raise UploadError(f"{path.parent} is a link to {target}. Upload that folder by itself.")
    if not found:
        raise UploadError(
            f"no {here.name} in {folder} or its subfolders. "
            "Run embed again with --export parquet: stored vectors are reused."
        )
    return found


def _upload_one(file: PointsFile, checksum: str, target: str, server: Server, emit: Emit) -> UploadReport:
    started = time.perf_counter()
    created = server.ensure_collection(target, file.vectors)
    mark = check_origin(file, target, server, emit, created=created)
    folder = file.path.parent
    if problem := drop_damaged_upload_state(folder):
        emit(Warned(collection=file.collection, message=problem))
    journal = UploadJournal(folder, server.url, target, checksum)
    resumed_at = 0 if created else min(journal.uploaded(), server.count(target))
    emit(
        UploadStarted(
            collection=file.collection,
            target=target,
            points=file.points,
            uploaded=resumed_at,
            created=created,
        )
    )
    position = 0
    sample: dict[str, str] = {}
    for ids, vectors, payloads in file.batches(BATCH_POINTS):
        position += len(ids)
        if position <= resumed_at:
            continue
        if position >= len(sample) * file.points / READ_BACK_POINTS:
            sample[ids[0]] = payload_digest(payloads[0])
        for payload in payloads if mark else ():
            payload[RECORD_KEY] = mark
        for part in _within_limit(payloads, sum(spec.dim or 0 for spec in file.vectors) * NUMBER_BYTES):
            lists = {name: each[part].tolist() for name, each in vectors.items()}
            batch = models.Batch(ids=list(ids[part]), vectors=lists.get(UNNAMED, lists), payloads=payloads[part])
            server.upsert(target, batch)
        journal.note(position)
        emit(BatchUploaded(collection=file.collection, target=target, points=len(ids)))
    journal.note(position, force=True)
    counted = sum(server.count(target, ids) for ids in file.ids(COUNT_POINTS))
    if counted != file.points:
        journal.forget()
        raise UploadError(
            f"{target} holds {counted} of the {file.points} points of {file.collection} after the upload. "
            "Another program may be changing it. Run the same command again to send all points again."
        )
    try:
        server.require_stored(target, sample)
    finally:
        journal.forget()  # the next upload starts from the first point, as the server may have changed
    seconds = time.perf_counter() - started
    emit(UploadFinished(collection=file.collection, target=target, counted=counted, seconds=seconds))
    return UploadReport(file.collection, target, file.points, counted, resumed_at)


def _within_limit(payloads: list[dict[str, Any]], vector_bytes: int) -> Iterator[slice]:
    """Split a batch into requests below Qdrant's size limit."""
    start, size = 0, 0
    for row, payload in enumerate(payloads):
        more = len(json.dumps(payload)) + vector_bytes
        if size + more > REQUEST_BYTES and row > start:
            yield slice(start, row)
            start, size = row, 0
        size += more
    yield slice(start, len(payloads))
