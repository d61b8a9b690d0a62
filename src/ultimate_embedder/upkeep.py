"""Look after an output: what is in it, what is left to do, and whether it is still what it was."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.config import HubAccess
from ultimate_embedder.ensemble import open_ensemble
from ultimate_embedder.errors import UltimateEmbedderError, UsageError
from ultimate_embedder.export import PointsFile, export_problem, read_export_journal
from ultimate_embedder.files import size_bytes
from ultimate_embedder.lock import LOCK_NAME
from ultimate_embedder.models import find_spec
from ultimate_embedder.vectors import read_ledger, shard_problem

AGREEMENT = {"float32": 0.9999, "float16": 0.999, "bfloat16": 0.99, "int8": 0.9}
READ_ROWS = 1024


@dataclass(frozen=True)
class PassStatus:
    """One pass of a collection, and what the next run would do about it."""

    collection: str
    model: str
    dtype: str
    rows: int
    missing: int | None
    """None where that is not known."""
    shards: int
    size_bytes: int
    next: str


def output_status(output: Path) -> list[PassStatus]:
    """Every pass in an output; what is missing is known from the last run's summary."""
    summary = _summary(output)
    found = []
    for described in sorted(output.glob("*/store/*/pass.json")):
        collection = described.parents[2].name
        identity = json.loads(described.read_text("utf-8"))["identity"]
        lines = read_ledger(described.parent)
        rows = sum(line["rows"] for line in lines)
        wanted = _wanted_texts(summary, collection, described.parent.name)
        missing = max(0, wanted - rows) if wanted is not None else None
        found.append(
            PassStatus(
                collection=collection,
                model=identity["model"],
                dtype=identity["dtype"],
                rows=rows,
                missing=missing,
                shards=len(lines),
                size_bytes=size_bytes(described.parent),
                next=_next(wanted, missing),
            )
        )
    begun = {(each.collection, each.model) for each in found}
    return found + [each for each in _not_begun(summary) if (each.collection, each.model) not in begun]


def _not_begun(summary: dict[str, Any]) -> Iterator[PassStatus]:
    """Passes that the last run was to make and that have nothing on disk yet."""
    for collection in summary.get("collections", []):
        if collection["status"] in ("partial", "failed"):
            texts = collection["chunks"]["distinct_texts"]
            for choice in summary["options"]["models"]:
                spec = find_spec(choice["name"])
                name = spec.key if spec else Path(choice["name"]).name  # as passes are called
                yield PassStatus(collection["collection"], name, "-", 0, texts, 0, 0, _next(texts, texts))


@dataclass
class Verification:
    """What was looked at, what is damaged, and what could not be checked."""

    shards: int = 0
    exports: int = 0
    vectors: int = 0
    damaged: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def verify_output(output: Path, sample: int, access: HubAccess) -> Verification:
    """Recompute the checksum of every shard and export, and some vectors of each collection of the last run."""
    summary, found = _summary(output), Verification()
    for described in sorted(output.glob("*/store/*/pass.json")):
        for line in read_ledger(described.parent):
            found.shards += 1
            if problem := shard_problem(described.parent / line["shard"], line):
                found.damaged.append(f"{described.parent / line['shard']} {problem}")
    for folder in sorted(path.parent for path in output.glob("*/store")):
        for noted in read_export_journal(folder).values():
            found.exports += 1
            if problem := export_problem(folder, noted):
                found.damaged.append(f"{folder / noted['name']} {problem}")
    for collection in summary.get("collections", []):
        path = output / collection["collection"] / "chunks.parquet"
        if collection["status"] == "completed" and path.exists() and not found.damaged:
            _verify_vectors(path, collection, summary, sample, access, found)
        elif collection["status"] == "skipped_existing":
            found.unchecked.append(f"{collection['collection']} was skipped by the last run: its vectors not compared")
    if not found.shards:
        found.unchecked.append(f"{output} holds no vectors")
    return found


def _verify_vectors(
    path: Path,
    collection: dict[str, Any],
    summary: dict[str, Any],
    sample: int,
    access: HubAccess,
    found: Verification,
) -> None:
    """Encode some chunks again and compare."""
    try:
        ensemble = open_ensemble(summary, collection, access)
    except UltimateEmbedderError as error:
        found.unchecked.append(f"vectors of {collection['collection']} cannot be computed again: {error}")
        return
    texts, stored = _sample(PointsFile.open(path), sample)
    if not texts:
        return
    agreement = min(AGREEMENT[each["dtype"]] for each in collection["passes"])
    again = ensemble.encode_documents(texts)
    for row, text in enumerate(texts):
        found.vectors += 1
        for name, vectors in again.items():
            cosine = _cosine(vectors[row], stored[name][row])
            if not cosine >= agreement:
                which = f"{name} vector" if name else "vector"
                words = f"the {which} of {text[:40]!r} does not agree with its text (cosine {cosine:.4f})"
                found.damaged.append(f"{path}: {words}")


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def _sample(points: PointsFile, count: int) -> tuple[list[str], dict[str, list[np.ndarray]]]:
    chosen = set(random.Random().sample(range(points.points), min(count, points.points)))
    texts: list[str] = []
    vectors: dict[str, list[np.ndarray]] = {spec.name: [] for spec in points.vectors}
    start = 0
    for ids, matrices, payloads in points.batches(READ_ROWS):
        for row in range(len(ids)):
            if start + row in chosen:
                texts.append(payloads[row]["text"])
                for name, matrix in matrices.items():
                    vectors[name].append(matrix[row])
        start += len(ids)
    return texts, vectors


def _summary(output: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((output / "summary.json").read_text("utf-8"))
    except FileNotFoundError:
        if not any(output.glob("*/store/*/pass.json")) and not (output / LOCK_NAME).exists():
            raise UsageError(f"{output} is not an output of ultimate-embedder: it has no summary.json.") from None
        return {}  # the run was killed before it could write one
    except ValueError as error:
        raise UsageError(f"{output / 'summary.json'} cannot be read: {error}") from error
    return summary


def _wanted_texts(summary: dict[str, Any], collection: str, fingerprint: str) -> int | None:
    for entry in summary.get("collections", []):
        for each in entry["passes"]:
            if entry["collection"] == collection and each["fingerprint"] == fingerprint:
                return int(each["texts"])
    return None


def _next(wanted: int | None, missing: int | None) -> str:
    if wanted is None:
        return "not known: the last run left no summary of it"
    return f"encode {missing} texts" if missing else "nothing"
