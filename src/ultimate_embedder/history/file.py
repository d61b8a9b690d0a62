"""How fast earlier runs were on this machine: a small file in the user's cache, for `plan`. Nothing depends on it.

It has names of models and of processors, numbers of tokens and seconds; no texts, no paths. Several runs may write to
it; it is bounded; one that is damaged is put aside, and the next run begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ultimate_embedder.lock import briefly_locked
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state

VERSION = 1
KEPT_OF_A_KIND = 8  # the newest
MOST_PASSES = 256
MOST_STAGES = 256
LONGEST_NAME = 200
LONGEST_LENGTH = 1 << 24
MOST_SECONDS = 1e8
LOCK_WAIT_S = 2.0


@dataclass(frozen=True)
class PassRecord:
    """What a pass took, over new texts, on devices of one kind."""

    model: str
    hardware: str
    dtype: str
    runtime: str
    """Torch, or another of `--backend`."""
    workers: int
    """Devices, or cores of a CPU, that shared the batches."""
    seconds: float
    texts: int
    tokens: int
    by_length: Mapping[int, tuple[int, float]]
    """Padded tokens, and seconds of computing by all workers together, by the power of two of the length."""
    at: float = 0.0

    @property
    def kind(self) -> tuple[str, str, str, str, int]:
        """Records of one kind can be compared."""
        return self.model, self.hardware, self.dtype, self.runtime, self.workers

    @property
    def computing_seconds(self) -> float:
        """Of all workers together."""
        return sum(seconds for _, seconds in self.by_length.values())


@dataclass(frozen=True)
class StageRecord:
    """What another part of a run took: so many seconds for so many units, such as chunks or bytes."""

    stage: str
    hardware: str
    units: int
    seconds: float
    at: float = 0.0

    @property
    def kind(self) -> tuple[str, str]:
        """Records of one kind can be compared."""
        return self.stage, self.hardware


@dataclass(frozen=True)
class History:
    """What is known of earlier runs, the newest last."""

    passes: tuple[PassRecord, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What the user should know of the file."""


def model_key(name: str, hub_id: str | None, digest: str) -> str:
    """What a model is known by: its hub id; that of a folder, whose name anybody can choose, by its files too."""
    return (hub_id or f"{name}@{digest[:12]}")[:LONGEST_NAME]


def read_history(path: Path | None) -> History:
    """The history; an empty one if there is none, with a note if it cannot be used."""
    found = read_state(path, _parse) if path is not None else None
    if isinstance(found, Damaged):
        return History(notes=(f"{found}; it is ignored, and the next run begins a new one",))
    return found or History()


def add_to_history(path: Path, passes: Sequence[PassRecord] = (), stages: Sequence[StageRecord] = ()) -> None:
    """Add records, and forget the oldest of a kind; raises `OSError` where the file cannot be written."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    with briefly_locked(path.with_name(f".{path.name}.lock"), LOCK_WAIT_S):
        known = read_history(path)
        if known.notes:  # it may be a file of the user's: nothing is lost
            path.replace(path.with_name(f"{path.name}.damaged"))
        write_state(
            path,
            {
                "history_version": VERSION,
                "passes": [_pass_fields(each) for each in _newest([*known.passes, *passes], MOST_PASSES)],
                "stages": [_stage_fields(each) for each in _newest([*known.stages, *stages], MOST_STAGES)],
            },
        )


def _newest(records: Iterable[Any], most: int) -> list[Any]:
    """The last few of each kind, and not more than `most`; in their order."""
    kept: dict[Any, list[Any]] = {}
    records = list(records)
    for record in records:
        kept.setdefault(record.kind, []).append(record)
    chosen = {id(record) for group in kept.values() for record in group[-KEPT_OF_A_KIND:]}
    return [record for record in records if id(record) in chosen][-most:]


def _parse(fields: Fields) -> History:
    version = fields.count("history_version", least=1, most=1000)
    if version > VERSION:
        raise UnfitError(f"it is of version {version}, and this program reads {VERSION}")
    if not fields.sealed:
        raise UnfitError("it has no checksum")
    return History(
        tuple(_read_pass(each) for each in fields.inner_list("passes")[-MOST_PASSES:]),
        tuple(_read_stage(each) for each in fields.inner_list("stages")[-MOST_STAGES:]),
    )


def _pass_fields(record: PassRecord) -> dict[str, Any]:
    return {
        "at": record.at,
        "model": record.model,
        "hardware": record.hardware,
        "dtype": record.dtype,
        "runtime": record.runtime,
        "workers": record.workers,
        "seconds": record.seconds,
        "texts": record.texts,
        "tokens": record.tokens,
        "by_length": [
            {"length": length, "padded_tokens": tokens, "seconds": seconds}
            for length, (tokens, seconds) in sorted(record.by_length.items())
        ],
    }


def _stage_fields(record: StageRecord) -> dict[str, Any]:
    return {
        "at": record.at,
        "stage": record.stage,
        "hardware": record.hardware,
        "units": record.units,
        "seconds": record.seconds,
    }


def _read_pass(fields: Fields) -> PassRecord:
    lengths = fields.inner_list("by_length")
    return PassRecord(
        model=_name(fields, "model"),
        hardware=_name(fields, "hardware"),
        dtype=_name(fields, "dtype"),
        runtime=_name(fields, "runtime"),
        workers=fields.count("workers", least=1, most=1 << 20),
        seconds=_seconds(fields),
        texts=fields.count("texts", least=1),
        tokens=fields.count("tokens", least=1),
        by_length={
            each.count("length", least=1, most=LONGEST_LENGTH): (each.count("padded_tokens", least=1), _seconds(each))
            for each in lengths
        },
        at=fields.number("at"),
    )


def _read_stage(fields: Fields) -> StageRecord:
    return StageRecord(
        stage=_name(fields, "stage"),
        hardware=_name(fields, "hardware"),
        units=fields.count("units", least=1),
        seconds=_seconds(fields),
        at=fields.number("at"),
    )


def _name(fields: Fields, name: str) -> str:
    text = fields.text(name)
    if len(text) > LONGEST_NAME:
        raise UnfitError(f"{name} is too long")
    return text


def _seconds(fields: Fields) -> float:
    seconds = fields.number("seconds")
    if not 0 < seconds < MOST_SECONDS:
        raise UnfitError("seconds is not a possible time")
    return seconds
