"""The vectors of one pass in memory, for texts that are encoded without files."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np

from ultimate_embedder.description import EncoderFacts
from ultimate_embedder.state import Damaged
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors.agreement import Agreement
from ultimate_embedder.vectors.index import KeyIndex


class PassVectors(Protocol):
    """The vectors of one pass, by the key of their text: on disk (`VectorStore`) or in memory (`MemoryStore`).

    They are arrays with a row for each text, or `SparseVectors` if the pass makes sparse ones.
    """

    identity: PassIdentity
    dim: int | None
    """None before the first vector, and if vectors are sparse."""
    encoder_facts: EncoderFacts | None

    @property
    def is_empty(self) -> bool:
        """Whether it has no vectors."""
        ...

    def describe_encoder(self, facts: EncoderFacts) -> None:
        """Keep the properties of the encoder with the vectors."""
        ...

    def agreement(self) -> Agreement | Damaged | None:
        """What was measured of the vectors against fp32, if that was needed."""
        ...

    def keep_agreement(self, found: Agreement) -> None:
        """Keep what was measured with the vectors."""
        ...

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether its vector is stored."""
        ...

    def append(self, keys: np.ndarray, vectors: Any, overlong: np.ndarray) -> None:
        """Add vectors; they can be read after the next `seal`."""
        ...

    def seal(self) -> None:
        """Make everything that was appended readable, and durable where it is on disk."""
        ...

    def read(self, keys: np.ndarray) -> Any:
        """The vectors of `keys`, in their order; every key must be stored and sealed."""
        ...

    def overlong(self, keys: np.ndarray) -> np.ndarray:
        """Which of `keys` are of texts that are stored and beyond the token limit."""
        ...

    def digest(self) -> str:
        """Hash of all stored vectors."""
        ...


class MemoryStore:
    """The dense vectors of one call. `agreement` is what earlier calls have measured."""

    def __init__(self, identity: PassIdentity, agreement: Agreement | None = None) -> None:
        self.identity = identity
        self.dim: int | None = None
        self.encoder_facts: EncoderFacts | None = None
        self._agreement = agreement
        self._index = KeyIndex()
        self._vectors: list[np.ndarray] = []
        self._overlong: list[list[bool]] = []

    @property
    def is_empty(self) -> bool:
        """Whether it has no vectors."""
        return not self._vectors

    def describe_encoder(self, facts: EncoderFacts) -> None:
        """Keep the properties of the encoder."""
        self.encoder_facts = facts

    def agreement(self) -> Agreement | None:
        """What was measured of the vectors against fp32, if that was needed."""
        return self._agreement

    def keep_agreement(self, found: Agreement) -> None:
        """Keep what was measured."""
        self._agreement = found

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether its vector is here."""
        return self._index.find(keys) >= 0

    def append(self, keys: np.ndarray, vectors: np.ndarray, overlong: np.ndarray) -> None:
        """Add the vectors of a batch."""
        if not len(keys):
            return
        self.dim = vectors.shape[1]
        self._index.add(len(self._vectors), keys)
        self._vectors.append(np.asarray(vectors, np.float32))
        self._overlong.append(np.asarray(overlong, bool).tolist())

    def seal(self) -> None:
        """Nothing to do: what is in memory can be read at once."""

    def read(self, keys: np.ndarray) -> np.ndarray:
        """The vectors of `keys`, in their order; every key must be here."""
        batches, rows = self._index.unpack(self._index.find(keys))
        vectors = np.empty((len(keys), self.dim or 0), np.float32)
        by_batch = np.argsort(batches, kind="stable")
        ends = np.searchsorted(batches[by_batch], np.arange(len(self._vectors)), side="right")
        for stored, chosen in zip(self._vectors, np.split(by_batch, ends[:-1]), strict=True):
            vectors[chosen] = stored[rows[chosen]]
        return vectors

    def overlong(self, keys: np.ndarray) -> np.ndarray:
        """Which of `keys` are of texts that are here and beyond the token limit."""
        places = self._index.find(keys)
        held = np.flatnonzero(places >= 0)
        batches, rows = self._index.unpack(places[held])
        found = np.zeros(len(keys), bool)
        for place, batch, row in zip(held.tolist(), batches.tolist(), rows.tolist(), strict=True):
            found[place] = self._overlong[batch][row]
        return found

    def digest(self) -> str:
        """Hash of all vectors, in the order in which they came."""
        hashed = hashlib.sha256()
        for vectors in self._vectors:
            hashed.update(vectors.tobytes())
        return hashed.hexdigest()
