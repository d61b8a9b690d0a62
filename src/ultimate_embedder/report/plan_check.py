"""Plan and actual, side by side: an event sink that knows the plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ultimate_embedder import events
from ultimate_embedder.files import disk_bytes
from ultimate_embedder.planned import Plan, PlannedCollection, PlannedPass, PlannedSeconds, PlannedWords
from ultimate_embedder.summary import (
    CollectionSummary,
    ExportSummary,
    PassSummary,
    PlanFigure,
    PlanSummary,
    RunSummary,
)
from ultimate_embedder.types import DeviceFacts

SAME_MEMORY = 0.1  # cards of one kind report a few per cent more or less


class PlanCheck:
    """Sees what a run does, and compares it with its plan in the end."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._digests: dict[str | None, str] = {}
        self._devices: tuple[DeviceFacts, ...] = ()
        self._peaks: dict[str, int] = {}

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        if isinstance(event, events.ChunksLoaded):
            self._digests[event.collection] = event.digest
        elif isinstance(event, events.DevicesOpened):
            self._devices = event.devices
        elif isinstance(event, events.BatchEncoded):
            for name in event.device.split("+"):  # of a group, the member that held most is told
                self._peaks[name] = max(self._peaks.get(name, 0), event.memory.peak_bytes)

    def compare(self, summary: RunSummary) -> PlanSummary:
        """The plan beside the summary of the run; planned values are put into its passes too."""
        plan = self._plan
        found = PlanSummary(made_at=plan.made_at, verdict=plan.verdict, same_work=True)
        if other := next(self._other_work(summary), None):
            return found.model_copy(update={"same_work": False, "same_devices": False, "why": other})
        other_devices = self._other_devices()
        figures = list(self._figures(summary, timed=other_devices is None))
        return found.model_copy(
            update={"same_devices": other_devices is None, "why": other_devices or "", "figures": figures}
        )

    def _other_work(self, summary: RunSummary) -> Iterator[str]:
        """Why the plan is of other work."""
        planned = {each.collection: each for each in self._plan.collections}
        done = {each.collection: each for each in summary.collections}
        if planned.keys() != done.keys():
            yield f"it is of other collections: {', '.join(planned) or 'none'}"
        for name in planned.keys() & done.keys():
            yield from self._other_collection(planned[name], done[name])

    def _other_collection(self, planned: PlannedCollection, done: CollectionSummary) -> Iterator[str]:
        name = planned.collection
        if planned.digest and planned.digest != self._digests.get(name, planned.digest):
            yield f"{name}: its chunks have changed since"
        if [each.model for each in planned.passes] != [each.model for each in done.dense_passes]:
            models = ", ".join(each.model for each in planned.passes) or "none"
            yield f"{name}: it is of other models: {models}"
            return
        for one, other in zip(planned.passes, done.dense_passes, strict=True):
            if one.fingerprint is not None and one.fingerprint != other.fingerprint:
                yield f"{name}: {one.model} is computed otherwise (its files, precision, prompt or token limit)"
            elif one.stored_texts != other.stored_texts:
                yield (
                    f"{name}: {one.stored_texts:,} texts had a vector of {one.model} when it was made, and "
                    f"{other.stored_texts:,} when the run began"
                )
        words = _words(done)
        if (planned.words is None) != (words is None):
            yield f"{name}: it is {'without' if words else 'with'} BM25"
        elif planned.words and words and planned.words.stored_texts != words.stored_texts:
            yield f"{name}: more texts are counted for BM25 than when it was made"

    def _other_devices(self) -> str | None:
        """Why memory and time of the plan are of other devices."""
        planned = [device for device in self._plan.devices if device.has_ceiling]
        here = [device for device in self._devices if device.name != "cpu"]
        if len(planned) != len(here):
            return f"it is for {len(planned)} cards, and there are {len(here)}"
        for one, other in zip(planned, here, strict=True):
            if abs(one.total_bytes - other.total_bytes) > SAME_MEMORY * other.total_bytes:
                return f"it is for {one.hardware}, and {other.name} is {other.hardware}"
        return None

    def _figures(self, summary: RunSummary, *, timed: bool) -> Iterator[PlanFigure]:
        done = {each.collection: each for each in summary.collections}
        for planned in self._plan.collections:
            yield from _collection_figures(planned, done[planned.collection], timed=timed)
        if not timed:
            return
        names = [device.name for device in self._devices if device.name != "cpu"]
        for device, name in zip([each for each in self._plan.devices if each.has_ceiling], names, strict=True):
            if device.peak_bytes and name in self._peaks:
                yield _figure("peak memory allocated", "bytes", device.peak_bytes, self._peaks[name], device=name)
        if (total := self._plan.time.total if self._plan.time else None) is not None:
            yield _range("run", total, summary.seconds)


def _collection_figures(planned: PlannedCollection, done: CollectionSummary, *, timed: bool) -> Iterator[PlanFigure]:
    name = planned.collection
    yield _figure("chunks", "chunks", planned.found, done.chunks.found, collection=name)
    yield _figure("points", "points", planned.points, done.chunks.embedded, collection=name)
    for one, other in zip(planned.passes, done.dense_passes, strict=True):
        yield from _pass_figures(one, other, name, timed=timed)
    if planned.words and (words := _words(done)):
        yield from _word_figures(planned.words, words, name, timed=timed)
    sizes = {each.kind: _on_disk(each) for each in done.exports}
    for kind, size in planned.export_bytes.items():
        if (actual := sizes.get(kind)) is not None:
            yield _figure(f"{kind} export on disk", "bytes", size, actual, collection=name)
    stages = {"load chunks": "load", "encode": "encode", "export": "export"}
    for stage, theirs in stages.items():
        if timed and stage in planned.seconds and done.seconds_by_stage.get(theirs):
            seconds = _encoding(planned) if stage == "encode" else planned.seconds[stage]
            yield _range(stage, seconds, done.seconds_by_stage[theirs], collection=name)


def _encoding(planned: PlannedCollection) -> PlannedSeconds:
    """As a summary has it: with counting words, but where only the longest pass counts."""
    encode, words = planned.seconds["encode"], planned.seconds.get("count words")
    if words is None or planned.mode == "simultaneous":
        return encode
    return encode.model_copy(update={"low": encode.low + words.low, "high": encode.high + words.high})


def _words(done: CollectionSummary) -> PassSummary | None:
    return next((each for each in done.passes if each.counts_words), None)


def _word_figures(one: PlannedWords, other: PassSummary, collection: str, *, timed: bool) -> Iterator[PlanFigure]:
    where = {"collection": collection, "model": one.model}
    yield _figure("new texts", "texts", one.new_texts, other.encoded_texts, **where)
    yield _figure("words", "words", one.words, other.tokens, **where)
    if timed and one.seconds is not None and one.new_texts:
        yield _range("pass", one.seconds, other.seconds, **where)


def _on_disk(export: ExportSummary) -> int | None:
    """What an export takes on the disk: files of a Qdrant shard have holes. None if it is elsewhere by now."""
    path = Path(export.path)
    if path.is_dir():
        return disk_bytes(path)
    return export.size_bytes if path.is_file() else None


def _pass_figures(one: PlannedPass, other: PassSummary, collection: str, *, timed: bool) -> Iterator[PlanFigure]:
    where = {"collection": collection, "model": one.model}
    yield _figure("new texts", "texts", one.new_texts, other.encoded_texts, **where)
    yield _figure("tokens", "tokens", one.tokens, other.tokens, **where)
    yield _figure("tokens with padding", "tokens", one.padded_tokens, other.padded_tokens, **where)
    yield _figure("tokens lost", "tokens", one.tokens_lost, other.tokens_lost, **where)
    other.planned_tokens = one.tokens
    if timed and one.seconds is not None and one.new_texts:
        other.planned_seconds_low, other.planned_seconds_high = one.seconds.low, one.seconds.high
        yield _range("pass", one.seconds, other.seconds, **where)


def _figure(what: str, unit: str, planned: float, actual: float, **where: str) -> PlanFigure:
    return PlanFigure.model_validate(
        {"what": what, "unit": unit, "planned": planned, "actual": actual, "off": _off(planned, actual), **where}
    )


def _range(what: str, planned: PlannedSeconds, actual: float, **where: str) -> PlanFigure:
    middle = (planned.low * planned.high) ** 0.5
    found = _figure(what, "seconds", middle, actual, **where)
    return found.model_copy(update={"planned_low": planned.low, "planned_high": planned.high, "basis": planned.basis})


def _off(planned: float, actual: float) -> float | None:
    if actual:
        return (planned - actual) / actual
    return None if planned else 0.0
