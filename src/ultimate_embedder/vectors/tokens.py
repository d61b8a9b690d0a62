"""Token ids on disk, shared by models with the same tokenizer, so that each text is tokenised once."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ultimate_embedder.files import temporary_path
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.output import TOKENS_PREFIX
from ultimate_embedder.vectors.index import KeyIndex

_SCHEMA = pa.schema([("high", pa.uint64()), ("low", pa.uint64()), ("cut", pa.bool_()), ("ids", pa.list_(pa.int32()))])


class TokenStore:
    """Append token ids by the key of their text, read them back by key; from any thread.

    It is a cache and not synced: losing it only costs the time to tokenise again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = KeyIndex()
        self._shards: list[pa.RecordBatch] = []
        self._lock = OrderedLock("token store", Rank.TOKENS)
        self._numbers = itertools.count()
        for path in sorted(folder.glob(f"{TOKENS_PREFIX}*.arrow")):
            self._numbers = itertools.count(int(path.stem.rpartition("-")[2]) + 1)
            try:
                self._adopt(path)
            except (OSError, pa.ArrowException):
                path.unlink()  # truncated by a crash: its texts are tokenised again

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether its token ids are stored."""
        with self._lock:
            return self._index.find(keys) >= 0

    def append(self, keys: np.ndarray, rows: Sequence[np.ndarray], truncated: np.ndarray) -> None:
        """Store the token ids of some texts."""
        if not len(keys):
            return
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
        ids = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(rows).astype(np.int32)))
        columns = [pa.array(keys[:, 0]), pa.array(keys[:, 1]), pa.array(np.asarray(truncated, bool)), ids]
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{TOKENS_PREFIX}{next(self._numbers):05d}.arrow"
            part = temporary_path(path)
            with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
                writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
            part.replace(path)
            self._adopt(path)

    def read(self, keys: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Token ids of `keys`, in their order, and which of their texts were truncated; every key must be stored."""
        with self._lock:
            shards, places = self._index.unpack(self._index.find(keys))
            rows: list[np.ndarray] = [np.empty(0, np.int32)] * len(keys)
            truncated = np.zeros(len(keys), bool)
            for number in np.unique(shards):
                batch = self._shards[number]
                offsets = batch.column("ids").offsets.to_numpy()
                ids = batch.column("ids").values.to_numpy()
                truncated_rows = batch.column("cut").to_numpy(zero_copy_only=False)
                for row in np.flatnonzero(shards == number):
                    place = places[row]
                    rows[row] = ids[offsets[place] : offsets[place + 1]]
                    truncated[row] = truncated_rows[place]
        return rows, truncated

    def remove(self) -> None:
        """Delete the store, when every model has its vectors."""
        with self._lock:
            self._shards.clear()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _adopt(self, path: Path) -> None:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        keys = np.stack([batch.column("high").to_numpy(), batch.column("low").to_numpy()], axis=1)
        self._index.add(len(self._shards), keys)
        self._shards.append(batch)
