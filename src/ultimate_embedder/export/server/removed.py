"""Points on the server whose chunks are gone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.points_file import PointsFile
from ultimate_embedder.export.server.calls import NOT_QDRANT, Server

PAGE_POINTS = 1000


def find_removed(server: Server, target: str, file: PointsFile) -> Iterator[list[str]]:
    """Yield the ids of points that an earlier upload of this collection made, and that it has no more.

    A point is ours if its id is the one that we would give to its chunk. Points of others are left alone.
    """
    ours = _sorted_ids(file)
    for page in _pages(server, target, file.kind.chunk_id_path):
        removed = [each for each, chunk_id in page if _is_ours(file, each, chunk_id) and not _holds(ours, each)]
        if removed:
            yield removed


def delete_points(server: Server, target: str, ids: list[str]) -> None:
    """Delete points, and wait until they are gone."""
    server.ask("delete points", "POST", "/points/delete", target, {"points": ids}, wait="true")


def _pages(server: Server, target: str, chunk_id: Sequence[str]) -> Iterator[list[tuple[str, Any]]]:
    """Ids and chunk ids of all points in a collection, page by page; `chunk_id` is where payloads have the latter."""
    offset: Any = None
    most, seen = 2 * server.count(target) + PAGE_POINTS, 0  # others may add points meanwhile, but not for ever
    read = partial(_read_page, chunk_id)
    while True:
        body = {"limit": PAGE_POINTS, "with_payload": [".".join(chunk_id)], "with_vector": False, "offset": offset}
        points, following = server.ask("list points", "POST", "/points/scroll", target, body, read=read)
        yield points
        if following is None:
            return
        seen += len(points)
        if following == offset or not points or seen > most:
            raise UploadError(f"cannot list points on {server.url}: {NOT_QDRANT}, as they do not end. Check --url.")
        offset = following


def _read_page(path: Sequence[str], found: Any) -> tuple[list[tuple[str, Any]], str | int | None]:
    following = found.get("next_page_offset")
    if following is not None and not isinstance(following, str | int):
        raise TypeError
    points = []
    for each in found["points"]:
        chunk_id = each.get("payload")
        for key in path:
            chunk_id = chunk_id.get(key) if isinstance(chunk_id, Mapping) else None
        points.append((str(each["id"]), chunk_id))  # an id may also be a number, and then it is not one of ours
    return points, following


def _is_ours(file: PointsFile, found: str, chunk_id: Any) -> bool:
    return isinstance(chunk_id, str) and file.kind.point_id(file.collection, chunk_id) == found


def _sorted_ids(file: PointsFile) -> np.ndarray:
    """The ids of our points, 16 bytes each."""
    ids = [b"".join(uuid.UUID(each).bytes for each in page) for page in file.ids(PAGE_POINTS)]
    return np.sort(np.frombuffer(b"".join(ids), "S16"))


def _holds(ours: np.ndarray, wanted: str) -> bool:
    key = np.frombuffer(uuid.UUID(wanted).bytes, "S16")
    place = int(np.searchsorted(ours, key)[0])
    return place < len(ours) and ours[place] == key[0]
