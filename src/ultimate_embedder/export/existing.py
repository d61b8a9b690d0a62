"""What earlier runs have exported of a collection: what a run reports that skips it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import UploadError
from ultimate_embedder.export.formats import find_export
from ultimate_embedder.export.journal import read_export_journal
from ultimate_embedder.export.sparse_facts import read_sparse_facts
from ultimate_embedder.export.write import has_exports, has_graph
from ultimate_embedder.files import size_bytes
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.types import ExportedFile, HnswGraph, SparseFacts, SplitCounts, VectorSpec

if TYPE_CHECKING:
    from ultimate_embedder.export.points_file import PointsFile


@dataclass(frozen=True)
class ExistingExports:
    """The exports of a collection and what they were made of, from their journal. Their bytes are not checked."""

    files: tuple[ExportedFile, ...]
    embedded: int
    rejected: int
    split: SplitCounts
    distinct_texts: int
    passes: tuple[str, ...]
    """Fingerprints of the passes."""
    vectors: tuple[VectorSpec, ...]
    sparse: tuple[SparseFacts, ...]
    target: str | None
    problems: tuple[str, ...]
    """What is not known of the exports, or not right with them."""

    @property
    def found(self) -> int:
        """Records in the chunk files, when they were exported."""
        return self.embedded + self.rejected - self.split.added


def find_exports(
    folder: Path, kinds: Sequence[str], hnsw: HnswGraph | None = None, sparse: Sequence[str] = ()
) -> ExistingExports | None:
    """The exports of these kinds, if a collection has them all, with this search graph and these sparse vectors."""
    if not has_exports(folder, kinds):
        return None
    journal = read_export_journal(folder)
    if hnsw and any(find_export(kind).write_with_graph and not has_graph(journal[kind], hnsw) for kind in kinds):
        return None
    if any(name not in _sparse_names(journal[kind]) for kind in kinds for name in sparse):
        return None
    wanted = {kind: journal[kind] for kind in kinds}
    # kinds are written in their order: where a run was stopped between them, the first are the latest
    latest = next((noted for noted in wanted.values() if noted.get("found") is not None), wanted[kinds[0]])
    points = _points_file(folder) if "parquet" in wanted else None
    rows = latest.get("rows", points.points if points else 0)
    found = latest.get("found")
    split = SplitCounts(latest.get("split", 0), latest.get("split_points", 0))
    return ExistingExports(
        files=tuple(_exported(kind, folder, noted, rows) for kind, noted in wanted.items()),
        embedded=rows,
        rejected=found + split.added - rows if found is not None else 0,
        split=split,
        distinct_texts=latest.get("distinct_texts", 0),
        passes=tuple(latest.get("passes", ())),
        vectors=_vectors(latest, points),
        sparse=read_sparse_facts(latest.get("sparse")),
        target=latest.get("target", points.target if points else None),
        problems=tuple(_problems(wanted)),
    )


def _exported(kind: str, folder: Path, noted: dict[str, Any], rows: int) -> ExportedFile:
    path = folder / noted["name"]
    size = noted["size_bytes"] if "size_bytes" in noted else size_bytes(path)
    return ExportedFile(kind, path, size, noted.get("sha256", ""), noted.get("rows", rows))


def _sparse_names(noted: dict[str, Any]) -> list[str]:
    return [each["name"] for each in noted.get("sparse", ())]


def _vectors(noted: dict[str, Any], points: PointsFile | None) -> tuple[VectorSpec, ...]:
    if "vectors" in noted:
        return tuple(VectorSpec(**spec) for spec in noted["vectors"])
    return points.vectors if points else ()


def _points_file(folder: Path) -> PointsFile | None:
    from ultimate_embedder.export.points_file import PointsFile  # pyarrow: --help does without

    try:
        return PointsFile.open(CollectionOutput(folder).points_file)
    except UploadError:  # damaged: then the journal alone describes the exports
        return None


def _problems(wanted: dict[str, dict[str, Any]]) -> list[str]:
    problems = []
    if all(noted.get("found") is None for noted in wanted.values()):
        problems.append(
            "its exports are of an earlier version, which did not record how many records were rejected: "
            "'found' counts those that are in the exports"
        )
    if len({noted.get("identity") for noted in wanted.values()}) > 1:
        problems.append(
            "its exports are of different chunks or vectors, as a run was stopped between them. "
            "Run the command without --skip-existing: vectors that are stored are not computed again."
        )
    return problems
