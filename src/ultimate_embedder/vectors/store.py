"""The durable vector store of one pass.

A pass has a folder named after its fingerprint:

    pass.json         metadata: every field of the pass's identity, the dimension, token limit and prompt of the encoder
    shard-00000.npy   rows of (key of the text, truncated or not, vector), written atomically
    ledger.jsonl      one line per shard: rows and checksum; a shard is valid only if it is listed here

Vectors are looked up by the key of their text, so equal texts share one, and order does not matter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.errors import OutputError
from ultimate_embedder.files import atomic_file, file_sha256, remove_leftovers, sync_folder, write_json
from ultimate_embedder.output import PassOutput, find_passes
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors.index import KeyIndex

STORE_VERSION = 1
SHARD_ROWS = 8192
SHARD_SECONDS = 10.0  # a crash loses at most this much work


def fingerprint(identity: PassIdentity) -> str:
    """A hash of everything that affects a vector."""
    plain = json.dumps(dataclasses.asdict(identity), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class EncoderFacts:
    """Properties of an encoder that are known only after its model is loaded."""

    max_tokens: int
    document_prompt: str


class VectorStore:
    """Append vectors by key, read them back by key. A context manager: on exit, pending vectors are sealed."""

    def __init__(self, root: Path, identity: PassIdentity, *, read_only: bool = False) -> None:
        self.identity = identity
        self._read_only = read_only
        self.folder = root / fingerprint(identity)
        self.dim: int | None = None
        self.encoder_facts: EncoderFacts | None = None
        """None if the store is empty, or was written by an earlier version without them."""
        self._output = PassOutput(self.folder)
        self.notes: list[str] = []  # warnings found on opening
        self._index = KeyIndex()
        self._shards: list[Path] = []
        self._truncated: list[np.ndarray] = []
        self._pending: list[np.ndarray] = []
        self._pending_rows = 0
        self._last_seal = time.monotonic()
        self._next_shard = 0
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
        if self.dim is not None:  # written by an earlier version without them
            self._write_description(self.dim)

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether its vector is stored."""
        return self._index.find(keys) >= 0

    def append(self, keys: np.ndarray, vectors: np.ndarray, truncated: np.ndarray) -> None:
        """Add vectors; they are durable after the next `seal`, which happens automatically every few seconds."""
        if not len(keys):
            return
        if self.dim is None:
            self._begin(vectors.shape[1])
        rows = np.empty(len(keys), _row_dtype(vectors.shape[1]))
        rows["key"], rows["truncated"], rows["vector"] = keys, truncated, vectors
        self._pending.append(rows)
        self._pending_rows += len(rows)
        if self._pending_rows >= SHARD_ROWS or time.monotonic() - self._last_seal > SHARD_SECONDS:
            self.seal()

    def seal(self) -> None:
        """Write everything that was appended to disk, durably."""
        self._last_seal = time.monotonic()
        if not self._pending:
            return
        rows = np.concatenate(self._pending)
        buffer = io.BytesIO()
        np.save(buffer, rows)
        self._write_shard(buffer.getbuffer(), rows)
        self._pending, self._pending_rows = [], 0

    def copy_from(self, root: Path) -> int:
        """Copy the vectors of the same pass from another output; returns their number."""
        other = VectorStore(root, self.identity, read_only=True)
        if self.encoder_facts is None and other.encoder_facts is not None:
            self.describe_encoder(other.encoder_facts)
        for path in other._shards:
            rows = np.load(path, mmap_mode="r")
            if self.holds(rows["key"]).all():
                continue
            if self.dim is None:
                self._begin(rows["vector"].shape[1])
            self._write_shard(memoryview(path.read_bytes()), rows)
        return sum(len(truncated) for truncated in other._truncated)

    def _write_shard(self, content: memoryview, rows: np.ndarray) -> None:
        path = self._output.shard(self._next_shard)
        self._next_shard += 1
        with atomic_file(path) as file:
            file.write(content)
        line = {"shard": path.name, "rows": len(rows), "sha256": hashlib.sha256(content).hexdigest()}
        self._write_ledger({**line, "revision": self.identity.revision, "dtype": self.identity.dtype})
        self._adopt(path, rows)

    def read(self, keys: np.ndarray) -> np.ndarray:
        """The vectors of `keys`, in their order; every key must be stored and sealed."""
        places = self._index.find(keys)
        if (places < 0).any():
            raise KeyError(f"{int((places < 0).sum())} of {len(keys)} texts have no stored vector")
        vectors = np.empty((len(keys), self.dim or 0), np.float32)
        shards, rows = self._index.unpack(places)
        for number in np.unique(shards):
            chosen = shards == number
            stored = np.load(self._shards[number], mmap_mode="r")
            vectors[chosen] = stored["vector"][rows[chosen]]
        return vectors

    def digest(self) -> str:
        """Hash of all stored vectors."""
        sums = [line["sha256"] for line in read_ledger(self.folder)]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def count_truncated(self, keys: np.ndarray) -> int:
        """How many of `keys` are of texts that were truncated at the token limit."""
        places = self._index.find(keys)
        shards, rows = self._index.unpack(places[places >= 0])
        return sum(int(self._truncated[number][rows[shards == number]].sum()) for number in np.unique(shards))

    def _open(self) -> None:
        if not self._output.description.exists():
            return
        described = json.loads(self._output.description.read_text("utf-8"))
        if described["store_version"] > STORE_VERSION:
            raise OutputError(
                f"{self.folder} was written by a newer version of ultimate-embedder. "
                "Update the program, or choose another --output."
            )
        self.dim = int(described["dim"])
        self.encoder_facts = _encoder_facts(described)
        if not self._read_only:
            remove_leftovers(self.folder)
            self._truncate_torn_line()
        good = []
        for line in read_ledger(self.folder):
            path = self.folder / line["shard"]
            if problem := shard_problem(path, line):
                self.notes.append(f"{path} {problem}; recomputing its {line['rows']} vectors")
            else:
                good.append(line)
                self._adopt(path, np.load(path, mmap_mode="r"))
        if self.notes and not self._read_only:
            with atomic_file(self._output.ledger) as ledger:
                ledger.writelines(json.dumps(line).encode() + b"\n" for line in good)
        # shards that are not in the ledger are overwritten, those in it never
        self._next_shard = 1 + max((_number(path) for path in self._shards), default=-1)

    def _begin(self, dim: int) -> None:
        self.dim = dim
        self._write_description(dim)

    def _write_description(self, dim: int) -> None:
        described: dict[str, Any] = {"store_version": STORE_VERSION, "dim": dim}
        described["identity"] = dataclasses.asdict(self.identity)
        if self.encoder_facts is not None:
            described["encoder"] = dataclasses.asdict(self.encoder_facts)
        write_json(self._output.description, described)

    def _adopt(self, path: Path, rows: np.ndarray) -> None:
        self._index.add(len(self._shards), rows["key"])
        self._shards.append(path)
        self._truncated.append(np.array(rows["truncated"]))

    def _write_ledger(self, line: dict[str, Any]) -> None:
        with open(self._output.ledger, "ab") as ledger:
            ledger.write(json.dumps(line).encode() + b"\n")
            ledger.flush()
            os.fsync(ledger.fileno())
        sync_folder(self.folder)

    def _truncate_torn_line(self) -> None:
        """Remove an incomplete last line, left by a crash; its shard is not valid."""
        ledger = self._output.ledger
        if ledger.exists():
            os.truncate(ledger, _whole_lines(ledger.read_bytes()))


def read_ledger(folder: Path) -> list[dict[str, Any]]:
    """The valid shards of a pass: one entry per complete line of the ledger."""
    ledger = PassOutput(folder).ledger
    content = ledger.read_bytes() if ledger.exists() else b""
    return [json.loads(line) for line in content[: _whole_lines(content)].splitlines()]


def _whole_lines(content: bytes) -> int:
    return content.rfind(b"\n") + 1


def shard_problem(path: Path, line: dict[str, Any]) -> str | None:
    """What is wrong with a shard that is listed in the ledger, or None."""
    if not path.is_file():
        return "is missing"
    return None if file_sha256(path) == line["sha256"] else "is damaged (its checksum does not match)"


def earlier_identities(root: Path) -> list[PassIdentity]:
    """The identities of the passes in a store."""
    identities = (read_identity(each.folder) for each in find_passes(root))
    return [identity for identity in identities if identity is not None]


def read_identity(folder: Path) -> PassIdentity | None:
    """The identity of a pass; None if another version wrote it, with other fields."""
    described = json.loads(PassOutput(folder).description.read_text("utf-8"))
    try:
        return PassIdentity(**described["identity"])
    except TypeError:
        return None


def _encoder_facts(described: dict[str, Any]) -> EncoderFacts | None:
    facts = described.get("encoder") or {}
    if not {"max_tokens", "document_prompt"} <= facts.keys():
        return None
    return EncoderFacts(int(facts["max_tokens"]), str(facts["document_prompt"]))


def _number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _row_dtype(dim: int) -> np.dtype[Any]:
    return np.dtype([("key", "<u8", (2,)), ("truncated", "?"), ("vector", "<f4", (dim,))])
