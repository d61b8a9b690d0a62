"""Upload collections to a Qdrant server: resumable, no duplicate points, counted at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.config import retry_policy
from ultimate_embedder.errors import UploadError
from ultimate_embedder.events import BatchUploaded, Emit, ServerChanged, UploadFinished, UploadStarted, Warned, fan_out
from ultimate_embedder.export.points_file import Batch, PointsFile
from ultimate_embedder.export.recorded import recorded_checksum
from ultimate_embedder.export.server.aliases import check_alias, new_target, read_aliases, switch_alias
from ultimate_embedder.export.server.calls import RECORD_KEY, Server
from ultimate_embedder.export.server.collection import (
    check_collection,
    create_collection,
    create_indexes,
    require_support,
)
from ultimate_embedder.export.server.connection import connect
from ultimate_embedder.export.server.indexing import switch_indexing_off, switch_indexing_on
from ultimate_embedder.export.server.options import LONGEST_NAME_BYTES, UploadConfig
from ultimate_embedder.export.server.origin_check import check_origin, note_origin
from ultimate_embedder.export.server.preview import compare, request_bytes
from ultimate_embedder.export.server.read_back import ReadBack
from ultimate_embedder.export.server.removed import delete_points, find_removed
from ultimate_embedder.export.server.report import UploadReport
from ultimate_embedder.export.server.requests import grpc_requests, json_requests
from ultimate_embedder.export.server.sending import run_in_order
from ultimate_embedder.export.upload_state import UploadJournal, drop_damaged_upload_state
from ultimate_embedder.files import file_sha256
from ultimate_embedder.names import name_problem
from ultimate_embedder.output import CollectionOutput, Output, link_target
from ultimate_embedder.retry import RetryPolicy

COUNT_POINTS = 1000


def upload_points(config: UploadConfig, emit: Emit, policy: RetryPolicy | None = None) -> list[UploadReport]:
    """Upload every collection in a folder (or the folder itself, if it is one) to a Qdrant server."""
    files = [PointsFile.open(path, config.payload) for path in _find_points(config.folder)]
    _refuse_one_name_for_several(config, files)
    emit = fan_out([emit])  # several threads emit
    targets = [config.collection or _own_target(file) for file in files]
    checksums = [_check(file, emit) for file in files]  # all of them, before anything is sent
    if config.alias is not None and config.collection is None:
        targets = [new_target(targets[0], checksums[0], config.layout, config.payload.name)]
    with connect(config) as connection:
        server = Server(connection, config.url, emit, policy or retry_policy())
        require_support(server, config.layout)
        uploads = [
            _Upload(file, checksum, target, server, config, emit)
            for file, checksum, target in zip(files, checksums, targets, strict=True)
        ]
        return [each.preview() if config.dry_run else each.run() for each in uploads]


@dataclass(frozen=True)
class _Upload:
    """One collection on its way to a server."""

    file: PointsFile
    checksum: str
    target: str
    server: Server
    config: UploadConfig
    emit: Emit

    def run(self) -> UploadReport:
        """Send the points, count them, and do what else was asked for."""
        started = time.perf_counter()
        file, server, target, layout = self.file, self.server, self.target, self.config.layout
        pointed_to = check_alias(server, self.config.alias) if self.config.alias else None
        if problem := drop_damaged_upload_state(file.path.parent):
            self.emit(Warned(collection=file.collection, message=problem))
        journal = UploadJournal(file.path.parent, server.url, target, self.checksum, self.config.alias)
        interrupted = journal.interrupted()
        ours_already = interrupted is not None and interrupted.recreated
        recreated = self._delete_collection() if self.config.recreate and not ours_already else None
        if created := not server.exists(target):
            create_collection(server, target, file.vectors, file.sparse, layout)
        check_collection(server, target, file.vectors, file.sparse, layout)
        mark = note_origin(check_origin(file, target, server, self.emit, created=created), target, server)
        create_indexes(server, target, layout)
        if created:
            switch_indexing_off(server, target)
        resumed_at = min(interrupted.points, server.count(target)) if interrupted and not created else 0
        journal.begin(resumed_at, recreated=recreated is not None or ours_already)
        self.emit(
            UploadStarted(
                collection=file.collection, target=target, points=file.points, uploaded=resumed_at, created=created
            )
        )
        sample = ReadBack(file.points)
        sent_bytes = self._send(journal, resumed_at, mark, sample)
        counted = self._count(journal)
        self._read_back(journal, sample)
        switch_indexing_on(server, target)
        removed, deleted = self._look_for_removed(counted)
        replaced, gone = self._switch_alias(pointed_to)
        journal.finish(file.points, deleted=replaced if gone else None)
        seconds = time.perf_counter() - started
        self.emit(UploadFinished(collection=file.collection, target=target, counted=counted, seconds=seconds))
        return UploadReport(
            collection=file.collection,
            target=target,
            url=server.url,
            points=file.points,
            counted=counted,
            created=created,
            recreated=recreated,
            resumed_at=resumed_at,
            sent_bytes=sent_bytes,
            removed=removed,
            deleted=deleted,
            alias=self.config.alias,
            replaced=replaced,
            replaced_deleted=gone,
            seconds=seconds,
        )

    def preview(self) -> UploadReport:
        """What `run` would do; sends nothing that writes."""
        started = time.perf_counter()
        file, server, target = self.file, self.server, self.target
        pointed_to = check_alias(server, self.config.alias) if self.config.alias else None
        exists = server.exists(target)
        recreated = self._count_for_deletion() if exists and self.config.recreate else None
        created = not exists or recreated is not None
        other_weights = False
        if not created:
            check_collection(server, target, file.vectors, file.sparse, self.config.layout)
            other_weights = check_origin(file, target, server, self.emit, created=False).other_weights
        there = changed = size = 0

        def look(batch: Batch) -> tuple[int, int, int]:
            found = (0, 0) if created else compare(server, target, batch)
            return (*found, request_bytes(target, batch, over_grpc=self.config.grpc_port is not None))

        for numbers in run_in_order(file.batches(self.config.batch_size), look, self.config.parallel, server.stopped):
            there, size = there + numbers[0], size + numbers[2]
            changed += numbers[0] if other_weights else numbers[1]
        removed = 0 if created else self._count_removed(there)
        return UploadReport(
            collection=file.collection,
            target=target,
            url=server.url,
            dry_run=True,
            points=file.points,
            counted=there,
            created=created,
            recreated=recreated,
            sent_bytes=size,
            new=file.points - there,
            changed=changed,
            removed=removed,
            alias=self.config.alias,
            replaced=pointed_to if pointed_to != target else None,
            seconds=time.perf_counter() - started,
        )

    def _say(self, message: str) -> None:
        self.emit(ServerChanged(collection=self.file.collection, target=self.target, message=message))

    def _count_for_deletion(self) -> int:
        """The points that --recreate deletes; refuses an alias, which would delete another collection."""
        if (behind := read_aliases(self.server).get(self.target)) is not None:
            raise UploadError(
                f"{self.target} on {self.server.url} is an alias of {behind}. Give --alias {self.target} to fill a new "
                f"collection and switch, or --collection {behind} --recreate."
            )
        return self.server.count(self.target)

    def _delete_collection(self) -> int | None:
        if not self.server.exists(self.target):
            return None
        points = self._count_for_deletion()
        self.server.delete(self.target)
        self._say(f"deleted the collection {self.target} on {self.server.url} ({points} points), to create it anew")
        return points

    def _send(self, journal: UploadJournal, resumed_at: int, mark: object, sample: ReadBack) -> int:
        """Send the points from this one on; gives the bytes that were sent."""
        size, position = 0, resumed_at
        try:
            for end, points, sent in run_in_order(
                self._batches(resumed_at, mark, sample), self._send_batch, self.config.parallel, self.server.stopped
            ):
                size, position = size + sent, end  # in order: all points before this one are on the server
                journal.note(position)
                self.emit(BatchUploaded(collection=self.file.collection, target=self.target, points=points))
        except BaseException:
            journal.note(position, force=True)
            raise
        return size

    def _batches(self, resumed_at: int, mark: object, sample: ReadBack) -> Iterator[tuple[int, Batch]]:
        """Yield the batches that are not on the server, each with the number of points up to its end."""
        end = 0
        for batch in self.file.batches(self.config.batch_size):
            end += len(batch[0])
            if end <= resumed_at:
                continue
            sample.note(end, batch)
            for payload in batch[2] if mark else ():
                payload[RECORD_KEY] = mark
            yield end, batch

    def _send_batch(self, numbered: tuple[int, Batch]) -> tuple[int, int, int]:
        (end, batch), size = numbered, 0
        if self.config.grpc_port is not None:
            for message in grpc_requests(self.target, batch):
                self.server.upsert_messages(message)
                size += message.ByteSize()
        else:
            for body in json_requests(batch):
                self.server.upsert(self.target, body)
                size += len(body)
        return end, len(batch[0]), size

    def _count(self, journal: UploadJournal) -> int:
        """Count our points on the server; if some are missing, the next upload sends all of them."""
        ids = self.file.ids(COUNT_POINTS)
        counts = run_in_order(
            ids, lambda some: self.server.count(self.target, some), self.config.parallel, self.server.stopped
        )
        counted = sum(counts)
        if counted != self.file.points:
            journal.forget()
            raise UploadError(
                f"{self.target} holds {counted} of the {self.file.points} points of {self.file.collection} after the "
                "upload. Another program may be changing it. Run the same command again to send all points again."
            )
        return counted

    def _read_back(self, journal: UploadJournal, sample: ReadBack) -> None:
        try:
            sample.require_stored(self.server, self.target)
        except UploadError:
            journal.forget()
            raise

    def _count_removed(self, ours: int) -> int:
        if self.server.count(self.target) <= ours:
            return 0
        return sum(map(len, find_removed(self.server, self.target, self.file)))

    def _look_for_removed(self, ours: int) -> tuple[int, int]:
        """Count the points whose chunks are gone, and delete them if asked: how many there were, and were deleted."""
        if not self.config.delete_removed:
            if removed := self._count_removed(ours):
                self._say(
                    f"{removed} points of removed chunks are left in {self.target}. --delete-removed deletes them"
                )
            return removed, 0
        if self.server.count(self.target) <= ours:
            return 0, 0
        deleted = 0
        for ids in find_removed(self.server, self.target, self.file):
            delete_points(self.server, self.target, ids)
            deleted += len(ids)
        if deleted:
            self._say(f"deleted {deleted} points of removed chunks from {self.target}")
        return deleted, deleted

    def _switch_alias(self, pointed_to: str | None) -> tuple[str | None, bool]:
        """Point the alias here; gives the collection it pointed to before, and whether that was deleted."""
        alias = self.config.alias
        if alias is None or pointed_to == self.target:
            return None, False
        switch_alias(self.server, alias, self.target)
        if pointed_to is None:
            self._say(f"alias {alias} points to {self.target} now")
            return None, False
        others = [name for name, target in read_aliases(self.server).items() if target == pointed_to]
        delete = self.config.delete_old and not others
        if delete:
            self.server.delete(pointed_to)
        kept = "deleted" if delete else f"kept: it has the alias {others[0]}" if others else "kept"
        self._say(f"alias {alias} points to {self.target} now, and no longer to {pointed_to}, which was {kept}")
        return pointed_to, delete


def _refuse_one_name_for_several(config: UploadConfig, files: list[PointsFile]) -> None:
    option = "--collection" if config.collection is not None else "--alias" if config.alias is not None else None
    if option is not None and len(files) > 1:
        names = ", ".join(file.collection for file in files)
        raise UploadError(
            f"{config.folder} has several collections ({names}), but {option} names one target. "
            f"Upload them one by one: {config.folder / files[0].collection}"
        )


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


def _own_target(file: PointsFile) -> str:
    if problem := name_problem(file.target, longest_bytes=LONGEST_NAME_BYTES):
        raise UploadError(
            f"{file.path} is for a collection {file.target!r}, which {problem}. Give a name with --collection."
        )
    return file.target


def _find_points(folder: Path) -> list[Path]:
    here = CollectionOutput(folder).points_file
    found = [here] if here.exists() else [each.points_file for each in Output(folder) if each.points_file.exists()]
    for path in found if here not in found else ():
        if target := link_target(path.parent):  # how far it got would be written there
            raise UploadError(f"{path.parent} is a link to {target}. Upload that folder by itself.")
    if not found:
        raise UploadError(
            f"no {here.name} in {folder} or its subfolders. "
            "Run embed again with --export parquet: stored vectors are reused."
        )
    return found
