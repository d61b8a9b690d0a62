"""The durable vector store of one pass.

A pass has a folder named after its fingerprint:

    pass.json         metadata: every field of the pass's identity, the dimension, token limit and prompt of the encoder
    shard-00000.npy   rows of (key of the text, whether it is beyond the token limit, vector), written atomically;
                      shard-00000.arrow, if vectors are sparse (`row_kinds.py`)
    ledger.jsonl      one line per shard: rows and checksum; a shard is valid only if it is listed here

What is damaged is noted and left out: the vectors that it held are missing then, and computed again.
Vectors are looked up by the key of their text, so equal texts share one, and order does not matter.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.description import (
    STORE_VERSION,
    EncoderFacts,
    PassDescription,
    fingerprint,
    read_description,
    write_description,
)
from ultimate_embedder.errors import OutputError
from ultimate_embedder.files import atomic_file, delete, remove_leftovers
from ultimate_embedder.output import PassOutput, find_passes
from ultimate_embedder.state import Damaged
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors.agreement import Agreement, read_agreement, write_agreement
from ultimate_embedder.vectors.index import KeyIndex
from ultimate_embedder.vectors.ledger import LedgerLine, append_line, read_ledger, rewrite_ledger, shard_number
from ultimate_embedder.vectors.row_kinds import ROW_KINDS, ShardRows, row_kind
from ultimate_embedder.vectors.shards import load_shard, unlisted_shards

SHARD_ROWS = 8192
SHARD_BYTES = 64 << 20  # of sparse vectors, which may have any number of values
SHARD_SECONDS = 10.0  # a crash loses at most this much work


class VectorStore:
    """Append vectors by key, read them back by key. A context manager: on exit, pending vectors are sealed.

    Vectors are arrays, or `SparseVectors` if the pass makes sparse ones.
    """

    def __init__(self, root: Path, identity: PassIdentity, *, read_only: bool = False) -> None:
        self.identity = identity
        self._read_only = read_only
        self.folder = root / fingerprint(identity)
        self.dim: int | None = None
        """None before the first vector, and if vectors are sparse."""
        self.encoder_facts: EncoderFacts | None = None
        """None if the store is empty, or was written by an earlier version without them."""
        self._kind = row_kind(identity)
        self._begun = False
        self._described_dim: int | None = None
        self._output = PassOutput(self.folder)
        self.notes: list[str] = []  # warnings found on opening
        self._index = KeyIndex()
        self._shards: list[Path] = []
        self._lines: list[LedgerLine] = []
        self._numbers: set[int] = set()
        self._next_number = 0
        self._truncated: list[np.ndarray] = []
        self._pending: list[ShardRows[Any]] = []
        self._last_seal = time.monotonic()
        self._open()

    def __enter__(self) -> VectorStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.seal()

    def describe_encoder(self, facts: EncoderFacts) -> None:
        """Store the properties of the encoder with the vectors."""
        if facts == self.encoder_facts:
            return
        self.encoder_facts = facts
        if self._begun:  # written by an earlier version without them
            write_description(self.folder, self.identity, self.dim, facts)

    def agreement(self) -> Agreement | Damaged | None:
        """What was measured of the vectors against fp32, if that was needed."""
        return read_agreement(self.folder)

    def keep_agreement(self, found: Agreement) -> None:
        """Keep what was measured with the vectors."""
        write_agreement(self.folder, found)

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether its vector is stored."""
        return self._index.find(keys) >= 0

    def keys(self) -> np.ndarray:
        """The keys of all texts that have a vector here; 16 bytes per text."""
        found = [np.array(self._kind.open(path, known_good=True).keys) for path in self._shards]
        return np.concatenate(found) if found else np.empty((0, 2), np.uint64)

    @property
    def is_empty(self) -> bool:
        """Whether it has no vectors."""
        return not self._begun

    def append(self, keys: np.ndarray, vectors: Any, overlong: np.ndarray) -> None:
        """Add vectors; they are durable after the next `seal`, which happens automatically every few seconds."""
        if not len(keys):
            return
        dim = self._kind.dim(vectors)
        if not self._begun:
            self._begin(dim)
        if dim != self.dim:
            raise OutputError(
                f"{self.folder} has vectors of {self.dim} dimensions, but those of {self.identity.model} have "
                f"{dim}: they are not of this model. Run the command again with --fresh."
            )
        self._pending.append(ShardRows(keys, overlong, vectors, dim))
        if self._is_full() or time.monotonic() - self._last_seal > SHARD_SECONDS:
            self.seal()

    def _is_full(self) -> bool:
        if sum(map(len, self._pending)) >= SHARD_ROWS:
            return True
        is_sparse = self.identity.kind == "sparse"
        return is_sparse and sum(self._kind.size_bytes(rows.vectors) for rows in self._pending) >= SHARD_BYTES

    def seal(self) -> None:
        """Write everything that was appended to disk, durably."""
        self._last_seal = time.monotonic()
        if not self._pending:
            return
        rows = ShardRows(
            np.concatenate([rows.keys for rows in self._pending]),
            np.concatenate([rows.truncated for rows in self._pending]),
            self._kind.join([rows.vectors for rows in self._pending]),
            self.dim,
        )
        self._write_shard(self._kind.encode(rows), rows)
        self._pending = []

    def copy_from(self, root: Path) -> int:
        """Copy the vectors of the same pass from another output; returns their number. What is wrong there is noted."""
        other = VectorStore(root, self.identity, read_only=True)
        self.notes += other.notes
        if self.encoder_facts is None and other.encoder_facts is not None:
            self.describe_encoder(other.encoder_facts)
        copied = 0
        for path in other._shards:
            rows = self._kind.open(path)
            if problem := self._misfit(rows, other._described_dim):
                self.notes.append(f"{path} {problem}; its vectors are not taken over")
                continue
            copied += len(rows)
            if self.holds(rows.keys).all():
                continue
            if not self._begun:
                self._begin(rows.dim)
            self._write_shard(memoryview(path.read_bytes()), rows)
        return copied

    def _misfit(self, rows: ShardRows[Any], described_dim: int | None) -> str | None:
        """Why the rows of another output's shard are of no use here."""
        wanted = self.dim or self.identity.dim or described_dim or rows.dim
        if rows.dim != wanted:
            return f"has vectors of {rows.dim} dimensions instead of {wanted}"
        return self._kind.problem(rows.vectors)

    def _write_shard(self, content: memoryview, rows: ShardRows[Any]) -> None:
        path = self._output.shard(self._free_number(), self._kind.suffix)
        with atomic_file(path) as file:
            file.write(content)
        checksum = hashlib.sha256(content).hexdigest()
        line = LedgerLine(path.name, len(rows), checksum, self.identity.revision, self.identity.dtype)
        append_line(self.folder, line)
        self._adopt(line, rows)

    def adopt(self, path: Path, rows: int, sha256: str) -> str | None:
        """Make a file that another process has written a shard, without copying it; gives what is wrong with it.

        The file itself may stay where it is.
        """
        number = self._free_number()
        line = LedgerLine(
            self._output.shard(number, self._kind.suffix).name,
            rows,
            sha256,
            self.identity.revision,
            self.identity.dtype,
        )
        found = load_shard(path.parent, replace(line, shard=path.name), self._kind)
        if not isinstance(found, str):
            problem = self._misfit(found, self._described_dim)
            found = problem or found
        if isinstance(found, str):
            return f"{path} {found}"
        held = self.holds(found.keys)
        if held.any():
            left = np.flatnonzero(~held)
            self.append(found.keys[left], self._kind.take(found.vectors, left), found.truncated[left])
        else:
            if not self._begun:
                self._begin(found.dim)
            path.replace(self.folder / line.shard)
            append_line(self.folder, line)
            self._adopt(line, self._kind.open(self.folder / line.shard, known_good=True))
        return None

    def read(self, keys: np.ndarray) -> Any:
        """The vectors of `keys`, in their order; every key must be stored and sealed."""
        places = self._index.find(keys)
        if (places < 0).any():
            raise KeyError(f"{int((places < 0).sum())} of {len(keys)} texts have no stored vector")
        shards, rows = self._index.unpack(places)
        parts = []
        for number in np.unique(shards):
            chosen = np.flatnonzero(shards == number)
            stored = self._kind.open(self._shards[number], known_good=True).vectors
            parts.append((chosen, self._kind.take(stored, rows[chosen])))
        return self._kind.arrange(parts, len(keys), self.dim)

    def digest(self) -> str:
        """Hash of all stored vectors."""
        sums = [line.sha256 for line in self._lines]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def overlong(self, keys: np.ndarray) -> np.ndarray:
        """Which of `keys` are of texts that are stored and beyond the token limit: they were truncated, or pooled."""
        places = self._index.find(keys)
        held = np.flatnonzero(places >= 0)
        shards, rows = self._index.unpack(places[held])
        found = np.zeros(len(keys), bool)
        for number in np.unique(shards):
            found[held[shards == number]] = self._truncated[number][rows[shards == number]]
        return found

    def _open(self) -> None:
        if not self._read_only and self.folder.is_dir():
            remove_leftovers(self.folder)
        described = read_description(self.folder)
        if isinstance(described, PassDescription):
            if described.store_version > STORE_VERSION:
                raise OutputError(
                    f"{self.folder} was written by a newer version of ultimate-embedder. "
                    "Update the program, or choose another --output."
                )
            self._described_dim, self.encoder_facts = described.dim, described.encoder
        self._open_shards()
        self._check_description(described)

    def _open_shards(self) -> None:
        """Adopt the shards that the ledger lists; what is damaged is dropped, with a note."""
        ledger = read_ledger(self.folder)
        if ledger.damage is not None:
            self.notes.append(f"{ledger.damage}; recomputing the vectors that it does not list")
        for line in ledger.lines:
            rows = load_shard(self.folder, line, self._kind)
            wanted = self.dim or self.identity.dim
            if not isinstance(rows, str) and wanted not in (None, rows.dim):
                rows = "is damaged (its vectors have another dimension)"
            if isinstance(rows, str):
                self.notes.append(f"{self.folder / line.shard} {rows}; recomputing its {line.rows} vectors")
            else:
                self.dim, self._begun = rows.dim, True
                self._adopt(line, rows)
        unlisted = list(unlisted_shards(self.folder, [line.shard for line in ledger.lines]))
        if ledger.damage is None:
            where = self._output.ledger.name
            self.notes += [f"{path} is not listed in {where}; recomputing its vectors" for path in unlisted]
        if not self._read_only:
            if ledger.torn or self.notes:
                rewrite_ledger(self.folder, self._lines)
            for path in unlisted_shards(self.folder, [line.shard for line in self._lines]):
                delete(path)

    def _check_description(self, described: PassDescription | Damaged | None) -> None:
        """The folder's name and the shards tell all that matters of a pass: its metadata can be written again."""
        path = self._output.description
        if isinstance(described, PassDescription) and self.dim in (None, described.dim):
            return
        if described is None and not self._begun:
            return
        problem = str(described or f"{path} is missing")
        if isinstance(described, PassDescription):
            problem = f"{path} is damaged (its dimension is not that of the vectors)"
        if self._read_only:
            self.notes.append(f"{problem}; the vectors beside it are read without it")
            return
        self.notes.append(f"{problem}; it is written again")
        if not self._begun:
            delete(path)  # it is written with the first vectors
        else:
            write_description(self.folder, self.identity, self.dim, self.encoder_facts)

    def _begin(self, dim: int | None) -> None:
        self.dim, self._begun = dim, True
        write_description(self.folder, self.identity, dim, self.encoder_facts)

    def _adopt(self, line: LedgerLine, rows: ShardRows[Any]) -> None:
        self._index.add(len(self._shards), rows.keys)
        self._shards.append(self.folder / line.shard)
        self._lines.append(line)
        self._numbers.add(shard_number(line.shard))
        self._truncated.append(np.array(rows.truncated, bool))

    def _free_number(self) -> int:
        """The first number that no shard of the ledger has: those that are not listed are overwritten, others never."""
        while self._next_number in self._numbers:
            self._next_number += 1
        return self._next_number


def pass_problems(folder: Path) -> Iterator[str]:
    """What is damaged of a pass: its metadata, its ledger, its shards. Nothing is changed."""
    described, ledger = read_description(folder), read_ledger(folder)
    if isinstance(described, Damaged):
        yield str(described)
    elif described is None:
        yield f"{PassOutput(folder).description} is missing"
    elif described.store_version > STORE_VERSION:
        return
    if ledger.damage is not None:
        yield str(ledger.damage)
    identity = described.identity if isinstance(described, PassDescription) else None
    for line in ledger.lines:
        # without metadata the file itself tells what it holds
        kinds = [each for each in ROW_KINDS.values() if line.shard.endswith(each.suffix)]
        rows = load_shard(folder, line, row_kind(identity) if identity else kinds[0])
        if isinstance(rows, str):
            yield f"{folder / line.shard} {rows}"
        elif isinstance(described, PassDescription) and rows.dim != described.dim:
            yield f"{folder / line.shard} is damaged (its vectors have not {described.dim} dimensions)"
    for path in unlisted_shards(folder, [line.shard for line in ledger.lines]):
        yield f"{path} is not listed in {PassOutput(folder).ledger.name}"


def earlier_identities(root: Path) -> list[PassIdentity]:
    """The identities of the passes in a store."""
    identities = (read_identity(each.folder) for each in find_passes(root))
    return [identity for identity in identities if identity is not None]


def read_identity(folder: Path) -> PassIdentity | None:
    """The identity of a pass; None if its metadata are damaged, or of another version with other fields."""
    described = read_description(folder)
    return described.identity if isinstance(described, PassDescription) else None
