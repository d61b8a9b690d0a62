"""Contents of an output, and what is left to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ultimate_embedder.description import PassDescription, read_description
from ultimate_embedder.export import UploadState, find_exports, read_export_journal, read_uploads
from ultimate_embedder.files import size_bytes
from ultimate_embedder.models import model_name
from ultimate_embedder.output import PASS_NAME, CollectionOutput, PassOutput, open_output
from ultimate_embedder.state import Damaged
from ultimate_embedder.summary import RunSummary
from ultimate_embedder.terminal import counted
from ultimate_embedder.vectors import Ledger, read_ledger


@dataclass(frozen=True)
class PassStatus:
    """One pass of a collection, and what the next run will do for it."""

    collection: str
    model: str
    dtype: str
    rows: int
    missing: int | None
    """None if unknown."""
    shards: int
    size_bytes: int
    next: str


def output_status(folder: Path) -> list[PassStatus]:
    """Every pass in an output; the number of missing vectors comes from the last run's summary."""
    output = open_output(folder)
    summary, _ = output.try_summary()
    found = [_stored(each, stored, summary) for each in output for stored in each.passes]
    begun = {(each.collection, each.model) for each in found}
    return found + [each for each in _not_begun(summary) if (each.collection, each.model) not in begun]


@dataclass(frozen=True)
class UploadStatus:
    """The last upload of a collection to one place."""

    collection: str
    upload: UploadState
    current: bool
    """Whether the points on disk are still those that were uploaded."""

    @property
    def state(self) -> str:
        """How it stands, in words."""
        if self.upload.finished is None:
            return f"interrupted after {self.upload.points} points: run the same upload again"
        return f"complete since {self.upload.finished}" + ("" if self.current else "; the points have changed since")


def output_uploads(folder: Path) -> list[UploadStatus]:
    """Every place that collections of an output were uploaded to, as `upload` has recorded it."""
    found = []
    for collection in open_output(folder):
        uploads = read_uploads(collection.folder)
        checksum = read_export_journal(collection.folder).get("parquet", {}).get("sha256")
        for each in uploads if isinstance(uploads, tuple) else ():
            found.append(UploadStatus(collection.name, each, each.sha256 == checksum))
    return found


def output_nodes(folder: Path) -> Iterator[str]:
    """What the last run says of each node of its cluster, in words."""
    summary, _ = open_output(folder).try_summary()
    for node in summary.nodes if summary is not None else ():
        devices = counted(len(node.devices), "device")
        words = [
            f"{counted(node.texts, 'text')} on {devices}" if node.joined_at is not None else "it did not take part"
        ]
        words += [f"lost {counted(node.lost, 'time')}"] if node.lost else []
        words += [f"last: {node.losses[-1].reason}"] if node.losses else []
        words += [f"refused: {node.refused}"] if node.refused is not None else []
        yield f"{node.node} ({node.address}): {'; '.join(words)}"


def _stored(collection: CollectionOutput, stored: PassOutput, summary: RunSummary | None) -> PassStatus:
    described, ledger = read_description(stored.folder), read_ledger(stored.folder)
    identity = described.identity if isinstance(described, PassDescription) else None
    rows = ledger.rows
    wanted = _wanted_texts(summary, collection, stored.fingerprint)
    missing = max(0, wanted - rows) if wanted is not None else None
    return PassStatus(
        collection=collection.name,
        model=identity.model if identity else _unknown_model(described),
        dtype=identity.dtype if identity else "-",
        rows=rows,
        missing=missing,
        shards=len(ledger.lines),
        size_bytes=size_bytes(stored.folder),
        next=_damage(described, ledger) or _next(wanted, missing),
    )


def _unknown_model(described: PassDescription | Damaged | None) -> str:
    return "? (written by another version)" if isinstance(described, PassDescription) else "?"


def _damage(described: PassDescription | Damaged | None, ledger: Ledger) -> str | None:
    """What the next run mends first."""
    names = [each.path.name for each in (described, ledger.damage) if isinstance(each, Damaged)]
    names += [PASS_NAME] if described is None else []
    return f"recompute what cannot be used: {' and '.join(names)} damaged or missing" if names else None


def _not_begun(summary: RunSummary | None) -> Iterator[PassStatus]:
    """Passes of the last run's options that have nothing on disk yet."""
    if summary is None or summary.options is None:
        return
    for collection in summary.collections:
        if collection.status in ("partial", "failed"):
            alone = collection.collection in summary.options.no_ensemble
            texts = collection.chunks.distinct_texts
            names = [model_name(choice.name) for choice in summary.options.models[: 1 if alone else None]]
            names += [model_name(each.model) if each.model else each.method for each in summary.options.sparse]
            for name in names:
                yield PassStatus(collection.collection, name, "-", 0, texts, 0, 0, _next(texts, texts))


def _wanted_texts(summary: RunSummary | None, collection: CollectionOutput, fingerprint: str) -> int | None:
    for entry in summary.collections if summary else ():
        if entry.collection != collection.name:
            continue
        for each in entry.passes:
            if each.fingerprint == fingerprint:
                return each.texts
        if entry.status == "skipped_existing":  # then the exports say which passes they are made of
            made_of = find_exports(collection.folder, [export.kind for export in entry.exports])
            return made_of.distinct_texts if made_of and fingerprint in made_of.passes else None
    return None


def _next(wanted: int | None, missing: int | None) -> str:
    if wanted is None:
        return "unknown: the last run wrote no summary of it"
    return f"encode {missing} texts" if missing else "nothing"
