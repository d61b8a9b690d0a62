"""Points on the server whose chunks are gone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.points import point_id
from ultimate_embedder.export.points_file import PointsFile
from ultimate_embedder.export.server.calls import NOT_QDRANT, Server

Noted = tuple[Any, Any]
"""Chunk id and collection of a point, as its payload has them: anything, in points of others."""

PAGE_POINTS = 1000
COLLECTION = "collection"


def find_removed(server: Server, target: str, file: PointsFile) -> Iterator[list[str]]:
    """Yield the ids of points that an earlier upload of this collection made, and that it has no more.

    Points of others are left alone.
    """
    ours = _sorted_ids(file)
    for page in _pages(server, target, file.kind.chunk_id_path):
        removed = [each for each, noted in page if _is_ours(file, each, noted) and not _holds(ours, each)]
        if removed:
            yield removed


def delete_points(server: Server, target: str, ids: list[str]) -> None:
    """Delete points, and wait until they are gone."""
    server.ask("delete points", "POST", "/points/delete", target, {"points": ids}, wait="true")


def _pages(server: Server, target: str, path: tuple[str, ...]) -> Iterator[list[tuple[str, Noted]]]:
    """Ids of all points in a collection, page by page, each with its chunk id and collection."""
    fields = [".".join(path), ".".join((*path[:-1], COLLECTION))]
    offset: Any = None
    most, seen = 2 * server.count(target) + PAGE_POINTS, 0  # others may add points meanwhile, but not for ever
    while True:
        body = {"limit": PAGE_POINTS, "with_payload": fields, "with_vector": False, "offset": offset}
        points, following = server.ask(
            "list points", "POST", "/points/scroll", target, body, read=lambda found: _read_page(found, path)
        )
        yield points
        if following is None:
            return
        seen += len(points)
        if following == offset or not points or seen > most:
            raise UploadError(f"cannot list points on {server.url}: {NOT_QDRANT}, as they do not end. Check --url.")
        offset = following


def _read_page(found: Any, path: tuple[str, ...]) -> tuple[list[tuple[str, Noted]], str | int | None]:
    following = found.get("next_page_offset")
    if following is not None and not isinstance(following, str | int):
        raise TypeError
    points = []
    for each in found["points"]:
        inner = each.get("payload")
        for name in path[:-1]:
            inner = inner.get(name) if isinstance(inner, Mapping) else None
        noted = (inner.get(path[-1]), inner.get(COLLECTION)) if isinstance(inner, Mapping) else (None, None)
        points.append((str(each["id"]), noted))  # an id may also be a number, and then it is not one of ours
    return points, following


def _is_ours(file: PointsFile, found: str, noted: Noted) -> bool:
    """Whether the id is the one that we give to this chunk. Ids that are not made by us may be in other collections."""
    chunk_id, collection = noted
    if not isinstance(chunk_id, str) or file.kind.point_id(file.collection, chunk_id) != found:
        return False
    return point_id(file.collection, chunk_id) == found or bool(collection == file.collection)


def _sorted_ids(file: PointsFile) -> np.ndarray:
    """The ids of our points, 16 bytes each."""
    ids = [b"".join(uuid.UUID(each).bytes for each in page) for page in file.ids(PAGE_POINTS)]
    return np.sort(np.frombuffer(b"".join(ids), "S16"))


def _holds(ours: np.ndarray, wanted: str) -> bool:
    key = np.frombuffer(uuid.UUID(wanted).bytes, "S16")
    place = int(np.searchsorted(ours, key)[0])
    return place < len(ours) and ours[place] == key[0]
