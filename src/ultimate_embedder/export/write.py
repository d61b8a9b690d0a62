"""Write the requested exports."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import OutputError
from ultimate_embedder.events import Emit, ExportStarted, ExportWritten, Interval, PointsExported, Warned
from ultimate_embedder.export.check import check_export, describe_bytes, keep_changes
from ultimate_embedder.export.format import ExportDraft, ExportFormat
from ultimate_embedder.export.formats import EXPORTS, find_export
from ultimate_embedder.export.journal import journal_problems, read_export_journal, write_export_journal
from ultimate_embedder.export.points import Points
from ultimate_embedder.export.sparse_facts import sparse_record
from ultimate_embedder.export.together import write_together
from ultimate_embedder.files import delete
from ultimate_embedder.output import replaced_link
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import ExportedFile, HnswGraph, SplitCounts

if TYPE_CHECKING:
    from ultimate_embedder.chunks import ChunkTable

NONE_SPLIT = SplitCounts()
SIDE_BY_SIDE_POINTS = 4096  # fewer are written in no time, one export after the other
DRAFT_POINTS = 10_000  # fewer are written sooner than it is worth another process during encoding

Drafts = Mapping[str, ExportDraft]
"""Exports that were begun before their vectors were known, by kind."""
NO_DRAFTS: Drafts = {}


@contextmanager
def begin_exports(
    collection: str, table: ChunkTable, folder: Path, kinds: Sequence[str], emit: Emit, stop: StopSwitch
) -> Iterator[Drafts]:
    """Begin those exports of a collection that take long and do not wait for vectors, as long as the block lasts."""
    with ExitStack() as stack:
        found = {}
        for export in map(find_export, kinds if len(table) >= DRAFT_POINTS else ()):
            if export.begin is not None:
                path = folder / export.file_name(())
                found[export.kind] = stack.enter_context(export.begin(collection, table, path, emit, stop))
        yield found


def write_exports(
    points: Points,
    folder: Path,
    kinds: Sequence[str],
    emit: Emit,
    *,
    found: int | None = None,
    split: SplitCounts = NONE_SPLIT,
    fresh: bool = False,
    hnsw: HnswGraph | None = None,
    drafts: Drafts = NO_DRAFTS,
) -> None:
    """Write each kind of export into `folder`; skips those that are up to date, unless `fresh`.

    `found`: records in the chunk files, with those that were rejected; `split`: those of them that are several points.
    Both are kept in the journal, for a later run that skips the collection. `hnsw`: the search graph, for exports that
    have one. `drafts`: those that were begun.
    """
    described = _describe(points, found, split)
    if problems := journal_problems(folder):
        _forget_exports(problems, points, folder, kinds, emit)
    remove_stale_exports(points, folder, kinds, emit)
    journal = read_export_journal(folder)
    tasks = [
        _Task(find_export(kind), folder, points, journal.get(kind), hnsw, fresh, emit, drafts.get(kind))
        for kind in kinds
    ]
    failures: list[Exception] = []
    started, told_s = time.perf_counter(), 0.0
    with closing(_side_by_side(tasks) if tasks and len(points) >= SIDE_BY_SIDE_POINTS else _in_turn(tasks)) as begun:
        for step in begun:
            task = step.task
            try:
                noted = step.result() | described
            except OutputError as error:
                failures.append(error)
                continue
            if journal.get(task.kind) != noted:  # records that are rejected now change the counts, not the export
                journal[task.kind] = noted
                write_export_journal(folder, journal)
            exported = ExportedFile(task.kind, task.path, noted["size_bytes"], noted["sha256"], len(points))
            seconds = min(step.most_s, time.perf_counter() - started - told_s)
            told_s += seconds
            emit(ExportWritten(collection=points.collection, exported=exported, seconds=seconds))
    if failures:
        raise OutputError(" ".join(map(str, failures)))


class _Task:
    """One export of a collection: whether it must be written, and how."""

    def __init__(
        self,
        export: ExportFormat,
        folder: Path,
        points: Points,
        noted: dict[str, Any] | None,
        hnsw: HnswGraph | None,
        fresh: bool,
        emit: Emit,
        draft: ExportDraft | None,
    ) -> None:
        self.kind = export.kind
        self.path = folder / export.file_name(points.vectors)
        self.points = points
        self._export, self._noted, self._fresh, self._emit = export, noted, fresh, emit
        self._graph = hnsw if export.write_with_graph else None
        self._draft = draft

    def begin(self) -> dict[str, Any] | None:
        """Tell that it is begun; gives what the journal says of it if it is up to date, else None."""
        self._emit(ExportStarted(collection=self.points.collection, kind=self.kind))
        noted, graph = self._noted, self._graph
        if self._fresh or noted is None or noted["identity"] != self.points.identity or not has_graph(noted, graph):
            return None
        return None if _is_damaged(self.path.parent, self.kind, noted, self.points) else noted

    def write(self, points: Points) -> dict[str, Any]:
        """Write it; gives what the journal should say of it."""
        path, noted = self.path, self._noted
        if link := replaced_link(path):
            self._emit(Warned(collection=points.collection, message=link))
        self._replace(points)
        if noted is not None and noted["name"] != path.name:
            delete(path.parent / noted["name"])
        made = {"name": path.name, "identity": points.identity, "rows": len(points)}
        return made | describe_bytes(path, self.kind) | ({"hnsw": str(self._graph)} if self._graph else {})

    def _replace(self, points: Points) -> None:
        """Write it in the place of an earlier one; what others have changed in that is kept beside it."""
        path = self.path
        kept = keep_changes(path.parent, self.kind, self._noted or {"name": path.name})
        try:
            self._write_new(points.telling(_progress(self.kind, points, self._emit)))
        except BaseException as error:
            if kept and kept.path and not path.exists():
                kept.path.rename(path)
            if isinstance(error, IsADirectoryError):
                raise OutputError(
                    f"{path} is a folder where a file belongs. Move it and run the command again."
                ) from error
            raise
        if kept:
            self._emit(Warned(collection=points.collection, message=f"{path} is written anew. {kept.words}"))

    def _write_new(self, points: Points) -> None:
        if self._graph and self._export.write_with_graph:
            self._export.write_with_graph(points, self.path, self._graph, self._emit)
        else:
            (self._draft or self._export).write(points, self.path)


@dataclass(frozen=True)
class _Step:
    """A task that was begun."""

    task: _Task
    result: Callable[[], dict[str, Any]]
    """What the journal should say of the export; writes it, or waits until it is written."""
    most_s: float = math.inf
    """Its share of the time that exports take side by side: it is told by export, and must add up."""


def _in_turn(tasks: Sequence[_Task]) -> Generator[_Step, None, None]:
    """Begin each when the one before is done."""
    for task in tasks:
        noted = task.begin()
        yield _Step(task, partial(task.write, task.points) if noted is None else partial(dict, noted))


def _side_by_side(tasks: Sequence[_Task]) -> Generator[_Step, None, None]:
    """Write all that must be written at the same time, from one reading of the points."""
    current = {}
    for task in tasks:
        started = time.perf_counter()
        noted = task.begin()
        current[task] = noted, time.perf_counter() - started
    needed = [task for task in tasks if current[task][0] is None]
    with closing(write_together(tasks[0].points, [task.write for task in needed])) as outcomes:
        for task, (noted, looked_s) in current.items():
            if noted is not None:
                yield _Step(task, partial(dict, noted), looked_s)
            else:
                outcome = next(outcomes)
                yield _Step(task, outcome.result, math.inf if task is needed[-1] else looked_s + outcome.busy_s)


def _forget_exports(problems: Sequence[str], points: Points, folder: Path, kinds: Sequence[str], emit: Emit) -> None:
    """Without the journal it is not known what exports were made from: they are written again, or deleted."""
    known = read_export_journal(folder)
    for problem in problems:
        emit(Warned(collection=points.collection, message=f"{problem}; the exports that it listed are written again"))
    for export in EXPORTS:
        path = folder / export.file_name(points.vectors)
        if export.kind not in (*known, *kinds) and path.exists():
            reason = f"it is not known whether it is up to date, and --export does not include {export.kind}"
            message = f"deleted {path}: {reason}"
            if kept := keep_changes(folder, export.kind, {"name": path.name}):
                message = f"{path}: {reason}. {kept.words}"
            delete(path)
            emit(Warned(collection=points.collection, message=message))
    write_export_journal(folder, known)


def has_graph(noted: dict[str, Any], graph: HnswGraph | None) -> bool:
    """Whether an export has this search graph, or none."""
    return noted.get("hnsw") == (str(graph) if graph else None)


def has_exports(folder: Path, kinds: Sequence[str]) -> bool:
    """Whether a collection has exports of all these kinds, up to date or not."""
    journal = read_export_journal(folder)
    return bool(kinds) and all(kind in journal and (folder / journal[kind]["name"]).exists() for kind in kinds)


def _describe(points: Points, found: int | None, split: SplitCounts) -> dict[str, Any]:
    """What a run that skips the collection reports of it."""
    return {
        **({"split": split.chunks, "split_points": split.segments} if split.chunks else {}),
        "found": found,
        "distinct_texts": points.distinct_texts,
        "target": points.target,
        "passes": points.fingerprints,
        "origin": points.origin.as_record(),
        "vectors": [dataclasses.asdict(spec) for spec in points.vectors],
        **({"sparse": sparse_record(points.sparse)} if points.sparse else {}),
    }


def remove_stale_exports(points: Points, folder: Path, kinds: Sequence[str], emit: Emit) -> None:
    """Delete exports that are out of date and not requested now, so that they are not taken for current ones."""
    journal = read_export_journal(folder)
    stale = [kind for kind, noted in journal.items() if kind not in kinds and noted["identity"] != points.identity]
    for kind in stale:
        noted = journal.pop(kind)
        path = folder / noted["name"]
        message = f"deleted {path}: it was out of date, and --export does not include {kind}"
        if kept := keep_changes(folder, kind, noted):
            message = f"{path} is out of date, and --export does not include {kind}. {kept.words}"
        delete(path)
        emit(Warned(collection=points.collection, message=message))
    if stale:
        write_export_journal(folder, journal)


def _is_damaged(folder: Path, kind: str, noted: dict[str, Any], points: Points) -> bool:
    """Whether an export of these points must be written again. What was added to it since is left alone."""
    try:
        return check_export(folder, kind, noted, points.batches()).problem is not None
    except OutputError:  # it cannot be looked at: leave it alone as well
        return False


def _progress(kind: str, points: Points, emit: Emit) -> Callable[[int], None]:
    """What tells now and then how many points are written."""
    interval, total = Interval(), len(points)

    def tell(written: int) -> None:
        if interval.is_over():
            emit(PointsExported(collection=points.collection, kind=kind, points=written, total=total))

    return tell
