"""Nodes write vectors into an output on a shared file system; the driver makes them part of the store.

A node writes a file of rows, then a commit file with its checksum beside it; neither is changed afterwards. What a
driver that was killed has not adopted is adopted by the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ultimate_embedder.execution.cluster.units import ShardFile, UnitResult
from ultimate_embedder.files import atomic_file, delete
from ultimate_embedder.output import PassOutput
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors import ShardRows, VectorStore, row_kind


def write_unit(result: UnitResult, store: Path, identity: PassIdentity) -> UnitResult:
    """Write the vectors of a unit, durably; gives the result with the name of the file in their place."""
    kind = row_kind(identity)
    rows = ShardRows(result.keys, result.overlong, result.vectors, kind.dim(result.vectors))
    content = kind.encode(rows)
    output = PassOutput(store)
    path = output.unit(result.id, kind.suffix)
    with atomic_file(path) as file:
        file.write(content)
    shard = ShardFile(path.name, len(rows), hashlib.sha256(content).hexdigest())
    write_state(output.unit_commit(result.id), {"file": shard.name, "rows": shard.rows, "sha256": shard.sha256})
    return replace(result, vectors=None, shard=shard)


def adopt_unit(store: VectorStore, shard: ShardFile) -> str | None:
    """Make the file of a unit a shard of the store; gives what is wrong with it, if that cannot be."""
    output = PassOutput(store.folder)
    path = output.units / shard.name
    problem = store.adopt(path, shard.rows, shard.sha256)
    delete(path)
    delete(output.unit_commit(path.stem))
    return problem


def adopt_leftovers(store: VectorStore) -> Iterator[str]:
    """Adopt what nodes have committed for a driver that was killed; gives what could not be."""
    output = PassOutput(store.folder)
    for commit in sorted(output.units.glob("*.json")):
        shard = read_state(commit, _parse)
        problem: str | None
        if isinstance(shard, ShardFile):
            problem = adopt_unit(store, shard)
        else:
            problem = str(shard) if isinstance(shard, Damaged) else None
            delete(commit)
        if problem is not None:
            yield f"{problem}; its vectors are computed again"
    if output.units.is_dir():
        delete(output.units)  # files without a commit were not finished


def _parse(fields: Fields) -> ShardFile:
    shard = ShardFile(fields.text("file"), fields.count("rows", least=1), fields.sha256("sha256"))
    if Path(shard.name).name != shard.name or shard.name.startswith("."):
        raise UnfitError("file is not the name of a file")
    return shard
