"""The vectors of one pass, durable as they come.

A pass lives in a folder named after its fingerprint:

    pass.json         what the vectors are: every field of the pass's identity, their dimension, facts about the encoder
    shard-00000.npy   rows of (key of the text, was it truncated, vector), written whole or not at all
    ledger.jsonl      one line a shard: rows and checksum; a shard counts only when its line is on disk

Vectors are found by the key of their text, so equal texts share one, and order does not matter.
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
from ultimate_embedder.files import file_sha256, remove_leftovers, sync_folder, whole_file, write_json
from ultimate_embedder.output import PassOutput, find_passes
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors.index import KeyIndex

STORE_VERSION = 1
SHARD_ROWS = 8192
SHARD_SECONDS = 10.0  # at most this much work is in memory only


def fingerprint(identity: PassIdentity) -> str:
    """A short name for everything that changes a vector."""
    plain = json.dumps(dataclasses.asdict(identity), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class EncoderFacts:
    """What is known of an encoder only once its model is loaded."""

    max_tokens: int
    document_prompt: str


class VectorStore:
    """Append vectors by key, read them back by key. A context manager: leaving it seals what is pending."""

    def __init__(self, root: Path, identity: PassIdentity, *, read_only: bool = False) -> None:
        self.identity = identity
        self._read_only = read_only
        self.folder = root / fingerprint(identity)
        self.dim: int | None = None
        self.encoder_facts: EncoderFacts | None = None
        """None where the store is empty, or was written by a version that did not keep them."""
        self._output = PassOutput(self.folder)
        self.notes: list[str] = []  # what was found on opening that the user should know
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
        """Keep facts about the encoder with the vectors."""
        if facts == self.encoder_facts:
            return
        self.encoder_facts = facts
        if self.dim is not None:  # begun, by a version that did not keep them
            self._write_description(self.dim)

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether its vector is stored."""
        return self._index.find(keys) >= 0

    def append(self, keys: np.ndarray, vectors: np.ndarray, truncated: np.ndarray) -> None:
        """Take vectors; they are durable after the next `seal`, which comes by itself every few seconds."""
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
        """Put everything that was appended on disk."""
        self._last_seal = time.monotonic()
        if not self._pending:
            return
        rows = np.concatenate(self._pending)
        buffer = io.BytesIO()
        np.save(buffer, rows)
        self._write_shard(buffer.getbuffer(), rows)
        self._pending, self._pending_rows = [], 0

    def copy_from(self, root: Path) -> int:
        """Take over what another output has of the same pass; gives the number of vectors."""
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
        with whole_file(path) as file:
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
        """Changes when any stored vector does."""
        sums = [line["sha256"] for line in read_ledger(self.folder)]
        return hashlib.sha256("\n".join(sums).encode()).hexdigest()

    def count_truncated(self, keys: np.ndarray) -> int:
        """How many of `keys` stand for a text that was cut at the token limit."""
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
            self._cut_torn_line()
        good = []
        for line in read_ledger(self.folder):
            path = self.folder / line["shard"]
            if problem := shard_problem(path, line):
                self.notes.append(f"{path} {problem}; its {line['rows']} vectors are computed again")
            else:
                good.append(line)
                self._adopt(path, np.load(path, mmap_mode="r"))
        if self.notes and not self._read_only:
            with whole_file(self._output.ledger) as ledger:
                ledger.writelines(json.dumps(line).encode() + b"\n" for line in good)
        # a shard that the ledger does not list is overwritten, one that it lists never
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

    def _cut_torn_line(self) -> None:
        """Remove what a crash in mid-write has left of a last line; its shard does not count."""
        ledger = self._output.ledger
        if ledger.exists():
            os.truncate(ledger, _whole_lines(ledger.read_bytes()))


def read_ledger(folder: Path) -> list[dict[str, Any]]:
    """The shards of a pass that count: one entry for each whole line."""
    ledger = PassOutput(folder).ledger
    content = ledger.read_bytes() if ledger.exists() else b""
    return [json.loads(line) for line in content[: _whole_lines(content)].splitlines()]


def _whole_lines(content: bytes) -> int:
    return content.rfind(b"\n") + 1


def shard_problem(path: Path, line: dict[str, Any]) -> str | None:
    """What is wrong with a shard that the ledger lists, if anything."""
    if not path.is_file():
        return "is missing"
    return None if file_sha256(path) == line["sha256"] else "is damaged (its checksum does not match)"


def earlier_identities(root: Path) -> list[PassIdentity]:
    """The passes that a store holds."""
    identities = (read_identity(each.folder) for each in find_passes(root))
    return [identity for identity in identities if identity is not None]


def read_identity(folder: Path) -> PassIdentity | None:
    """What the vectors of a pass are; None if another version wrote them, with other fields."""
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
