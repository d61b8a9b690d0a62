"""Token ids on disk, shared by models with the same tokenizer, so that each text is tokenised once.

tokens-FINGERPRINT/tokens-00000.arrow     a header with the checksum of all that follows, then an Arrow file
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ultimate_embedder.files import delete, is_temporary, temporary_path
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.output import TOKENS_PREFIX
from ultimate_embedder.state import Damaged, UnfitError
from ultimate_embedder.vectors.index import KeyIndex

_SCHEMA = pa.schema([("high", pa.uint64()), ("low", pa.uint64()), ("over", pa.int64()), ("ids", pa.list_(pa.int32()))])
_MAGIC = b"ue-tokens-2\0"
_HEADER_BYTES = 64  # keeps the buffers of the Arrow file aligned


@dataclass(frozen=True)
class TokenLimits:
    """What the models that share token ids can read: ids below `vocabulary`, at most `max_tokens` of them."""

    vocabulary: int
    max_tokens: int


@dataclass(frozen=True)
class _Shard:
    """The token ids of some texts, one after the other."""

    keys: np.ndarray
    over: np.ndarray
    offsets: np.ndarray
    ids: np.ndarray


class TokenStore:
    """Append token ids by the key of their text, read them back by key; from any thread.

    It is a cache and not synced: losing it only costs the time to tokenise again. A file that is damaged is deleted.
    """

    def __init__(self, folder: Path, limits: TokenLimits | None = None) -> None:
        self.notes: list[str] = []
        """What was damaged of the files that were there."""
        self._folder = folder
        self._limits = limits
        self._index = KeyIndex()
        self._shards: list[_Shard] = []
        self._lock = OrderedLock("token store", Rank.TOKENS)
        if not folder.is_dir():
            delete(folder)
        for path in _files(folder):
            shard = _read(path, limits)
            if isinstance(shard, Damaged):
                self.notes.append(f"{shard}; its texts are tokenised again")
                delete(path)
            else:
                self._adopt(shard)
        self._numbers = itertools.count(len(self._shards))

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """For each key, whether its token ids are stored."""
        with self._lock:
            return self._index.find(keys) >= 0

    def append(self, keys: np.ndarray, rows: Sequence[np.ndarray], over: np.ndarray) -> None:
        """Store the token ids of some texts, and how many tokens of each are beyond the token limit."""
        if not len(keys):
            return
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
        ids = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(rows).astype(np.int32)))
        columns = [pa.array(keys[:, 0]), pa.array(keys[:, 1]), pa.array(np.asarray(over, np.int64)), ids]
        body = pa.BufferOutputStream()
        with pa.ipc.new_file(body, _SCHEMA) as writer:
            writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
        content = body.getvalue()
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._free_path()
            part = temporary_path(path)
            with open(part, "wb") as file:
                file.write(_header(self._folder.name, content))
                file.write(content)
            part.replace(path)
            self._adopt(_parse(pa.memory_map(str(path)).read_buffer().slice(_HEADER_BYTES)))

    def read(self, keys: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        """Token ids of `keys`, in their order, and the tokens beyond the limit; every key must be stored."""
        with self._lock:
            shards, places = self._index.unpack(self._index.find(keys))
            rows: list[np.ndarray] = [np.empty(0, np.int32)] * len(keys)
            over = np.zeros(len(keys), np.int64)
            for number in np.unique(shards):
                shard = self._shards[number]
                for row in np.flatnonzero(shards == number):
                    place = places[row]
                    rows[row] = shard.ids[shard.offsets[place] : shard.offsets[place + 1]]
                    over[row] = shard.over[place]
        return rows, over

    def remove(self) -> None:
        """Delete the store, when every model has its vectors."""
        with self._lock:
            self._shards.clear()
            delete(self._folder)

    def _adopt(self, shard: _Shard) -> None:
        self._index.add(len(self._shards), shard.keys)
        self._shards.append(shard)

    def _free_path(self) -> Path:
        paths = (self._folder / f"{TOKENS_PREFIX}{number:05d}.arrow" for number in self._numbers)
        return next(path for path in paths if not path.exists())


def token_problems(store: Path) -> Iterator[str]:
    """What is damaged of the token ids that a stopped run has left in the store of a collection."""
    for folder in sorted(store.glob(f"{TOKENS_PREFIX}*")):
        found = (_read(path, None) for path in _files(folder))
        yield from (str(each) for each in found if isinstance(each, Damaged))


def delete_tokens(store: Path) -> None:
    """Forget the token ids that a stopped run has left."""
    for folder in store.glob(f"{TOKENS_PREFIX}*"):
        delete(folder)


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob(f"{TOKENS_PREFIX}*.arrow")) if not is_temporary(path.name)]


def _header(tokenizer: str, content: pa.Buffer) -> bytes:
    digest = hashlib.sha256(tokenizer.encode() + b"\0")
    digest.update(content)
    return (_MAGIC + digest.digest()).ljust(_HEADER_BYTES, b"\0")


def _read(path: Path, limits: TokenLimits | None) -> _Shard | Damaged:
    """The token ids in a file: the bytes are those that were written, and its models can read them."""
    try:
        if not path.is_file():
            raise UnfitError("it is not a file")
        whole = pa.memory_map(str(path)).read_buffer()
        content = whole.slice(min(_HEADER_BYTES, whole.size))
        if whole.slice(0, min(_HEADER_BYTES, whole.size)) != pa.py_buffer(_header(path.parent.name, content)):
            raise UnfitError("its checksum does not match, or an earlier version wrote it")
        shard = _parse(content)
        _check(shard, limits)
    except UnfitError as error:
        return Damaged(path, f"is damaged ({error})")
    except (OSError, pa.ArrowException) as error:
        return Damaged(path, f"is damaged ({str(error).splitlines()[0]})")
    return shard


def _parse(content: pa.Buffer) -> _Shard:
    batch = pa.ipc.open_file(pa.BufferReader(content)).get_batch(0)
    batch.validate(full=True)
    if batch.schema != _SCHEMA or any(column.null_count for column in batch.columns):
        raise UnfitError("it has other columns")
    ids = batch.column("ids")
    return _Shard(
        keys=np.stack([batch.column("high").to_numpy(), batch.column("low").to_numpy()], axis=1),
        over=batch.column("over").to_numpy(),
        offsets=ids.offsets.to_numpy(),
        ids=ids.values.to_numpy(zero_copy_only=False),
    )


def _check(shard: _Shard, limits: TokenLimits | None) -> None:
    lengths = np.diff(shard.offsets)
    if (shard.over < 0).any():
        raise UnfitError("it has texts of fewer tokens than none")
    if len(shard.offsets) != len(shard.keys) + 1 or shard.offsets[0] < 0 or (lengths < 0).any():
        raise UnfitError("its texts overlap")
    if shard.offsets[-1] > len(shard.ids) or (len(shard.ids) and shard.ids.min() < 0):
        raise UnfitError("it has ids below 0, or fewer than it says")
    if limits is not None and len(shard.ids):
        if shard.ids.max() >= limits.vocabulary:
            raise UnfitError(f"it has ids outside of the vocabulary of {limits.vocabulary} tokens")
        if lengths.max() > limits.max_tokens:
            raise UnfitError(f"it has texts of more than {limits.max_tokens} tokens")
