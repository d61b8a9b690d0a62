"""Build the summary of a run from its events."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from ultimate_embedder import events
from ultimate_embedder.execution import NODE_LOST
from ultimate_embedder.report.environment import describe_machine, find_versions
from ultimate_embedder.report.nodes import NodeTotals
from ultimate_embedder.report.pass_totals import PassTotals, encode_seconds
from ultimate_embedder.report.quota import mitigations_quota, records_quota
from ultimate_embedder.report.rejections import RejectionGroups, as_group
from ultimate_embedder.report.roll_up import began, mitigation_key, rolled_up
from ultimate_embedder.summary import (
    Agreement,
    ChunkCounts,
    CollectionSummary,
    DeviceSummary,
    DuplicateChunkId,
    ExportSummary,
    FusionSummary,
    LeaseSummary,
    MeasuredWay,
    MissingModel,
    MitigationSummary,
    ModelSummary,
    PassSummary,
    PrecisionChoice,
    RejectedRecord,
    RunOptions,
    RunSummary,
    SlowBatch,
    TelemetrySummary,
)
from ultimate_embedder.terminal import valid_unicode
from ultimate_embedder.types import ExportedFile, RejectedGroup, node_of

if TYPE_CHECKING:
    from ultimate_embedder.report.plan_check import PlanCheck

MOST_LEASES = 10_000  # of a collection; events.jsonl has all
SLOWEST = 8


class SummaryBuilder:
    """An event sink whose `summary` is always up to date, even if the run fails."""

    def __init__(self, telemetry_of: Callable[[str], TelemetrySummary] | None = None) -> None:
        """`telemetry_of` gives the telemetry of a collection, for a summary that has it."""
        self._telemetry_of = telemetry_of
        self.summary = RunSummary(
            versions=find_versions(),
            machine=describe_machine(),
            started_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )
        self._collections: dict[str, CollectionSummary] = {}
        self._models: dict[str, ModelSummary] = {}
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.RunStarted: self._run_started,
            events.DeviceOpened: self._device_opened,
            events.NodeJoined: self._node_joined,
            events.NodeRefused: self._node_refused,
            events.PlanFound: self._plan_found,
            events.CollectionStarted: self._collection_started,
            events.ChunkRejected: self._chunk_rejected,
            events.ChunksRejected: self._chunks_rejected,
            events.IdDuplicated: self._id_duplicated,
            events.IdsDuplicated: self._ids_duplicated,
            events.ChunksLoaded: self._chunks_loaded,
            events.ChunksSplit: self._chunks_split,
            events.ModelResolved: self._model_resolved,
            events.ModelMissing: self._model_missing,
            events.ModelLoaded: self._model_loaded,
            events.ModeChosen: self._mode_chosen,
            events.LeaseAcquired: self._lease_acquired,
            events.ModelPlaced: self._model_placed,
            events.LeaseReleased: self._lease_released,
            events.ModelEvicted: self._model_evicted,
            events.TurnFinished: self._turn_finished,
            events.PassStarted: self._pass_started,
            events.WindowTokenized: self._window_tokenized,
            events.BatchEncoded: self._batch_encoded,
            events.BatchesEncoded: self._batches_encoded,
            events.PrecisionChosen: self._precision_chosen,
            events.PrecisionChecked: self._precision_checked,
            events.PassFinished: self._pass_finished,
            events.VectorsFused: self._vectors_fused,
            events.ExportWritten: self._export_written,
            events.CompanionPlaced: self._companion_placed,
            events.Mitigated: self._mitigated,
            events.Warned: self._warned,
            events.CollectionSkipped: self._collection_skipped,
            events.CollectionFinished: self._collection_finished,
            events.RunFinished: self._run_finished,
        }
        self._plan: PlanCheck | None = None
        self._rejections: dict[str, RejectionGroups] = {}
        self._rejected, self._duplicates, self._mitigations = records_quota(), records_quota(), mitigations_quota()
        self._last_mitigations: dict[tuple[str, ...], MitigationSummary] = {}
        self._passes: dict[tuple[str, int], PassTotals] = {}
        self._choices: dict[tuple[str, int], PrecisionChoice] = {}
        self._devices: dict[str, DeviceSummary] = {}
        self._nodes = NodeTotals()
        self._lease_began: dict[str, float] = {}
        self._started: float | None = None
        self._model_seconds = 0.0  # loading time since the current collection started

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        if self._plan is not None:
            self._plan(event)
        if handler := self._handlers.get(type(event)):
            handler(event)

    @property
    def began(self) -> bool:
        """Whether the run started, with its output folder locked."""
        return self.summary.options is not None

    def _of(self, event: events.Event) -> CollectionSummary:
        name = event.collection or ""
        if name not in self._collections:
            self._collections[name] = CollectionSummary(collection=name)
            self.summary.collections.append(self._collections[name])
        return self._collections[name]

    def _run_started(self, event: events.RunStarted) -> None:
        options = event.options
        self.summary.options = (
            options if isinstance(options, RunOptions) else RunOptions.model_validate(options.as_dict())
        )
        self._started = event.timestamp
        self.summary.command, self.summary.working_directory = list(event.command), event.working_directory
        self.summary.chunks = event.chunks
        self.summary.output = event.output
        self.summary.dry_run = event.options.dry_run

    def _device_opened(self, event: events.DeviceOpened) -> None:
        self._devices[event.device] = DeviceSummary(**_known(event, DeviceSummary))
        self.summary.devices = list(self._devices.values())

    def _node_joined(self, event: events.NodeJoined) -> None:
        for device in self._nodes.join(event):  # those of nodes that join late are told nowhere else
            self._devices.setdefault(device.device, device)
        self.summary.devices, self.summary.nodes = list(self._devices.values()), self._nodes.listed

    def _node_refused(self, event: events.NodeRefused) -> None:
        self._nodes.refuse(event)
        self.summary.nodes = self._nodes.listed
        self.summary.warnings.append(f"{event.node} ({event.address}) was refused: {event.reason}")

    def _plan_found(self, event: events.PlanFound) -> None:
        from ultimate_embedder.planned import Plan  # slow to import, and most runs have no plan
        from ultimate_embedder.report.plan_check import PlanCheck

        self._plan = PlanCheck(Plan.model_validate(event.plan))

    def _collection_started(self, event: events.CollectionStarted) -> None:
        if self._started is not None:
            self.summary.seconds_by_stage.setdefault("start", max(0.0, event.timestamp - self._started))
        collection = self._of(event)
        collection.files = event.files
        # a fresh process goes on with it: it reads the chunks again, and what was encoded stays
        collection.chunks.rejected = collection.chunks.duplicate_ids = 0
        collection.rejected, collection.duplicate_ids = [], []
        for quota in (self._rejected, self._duplicates):
            quota.restart(event.collection)
        self._rejections[collection.collection] = groups = RejectionGroups()
        collection.rejected_by_reason = groups.listed
        self._model_seconds = 0.0

    def _chunk_rejected(self, event: events.ChunkRejected) -> None:
        if self._rejected.take(event.collection):
            self._of(event).rejected.append(RejectedRecord(**dataclasses.asdict(event.rejected)))
        self._count_rejected(event, 1, (as_group(event.rejected),))

    def _chunks_rejected(self, event: events.ChunksRejected) -> None:
        self._count_rejected(event, event.records, event.groups)

    def _count_rejected(self, event: events.Event, records: int, more: tuple[RejectedGroup, ...]) -> None:
        collection = self._of(event)
        collection.chunks.rejected += records
        groups = self._rejections.setdefault(collection.collection, RejectionGroups())
        for group in more:
            groups.add(group)
        collection.rejected_by_reason = groups.listed

    def _id_duplicated(self, event: events.IdDuplicated) -> None:
        collection = self._of(event)
        collection.chunks.duplicate_ids += 1
        if self._duplicates.take(event.collection):
            collection.duplicate_ids.append(DuplicateChunkId(**dataclasses.asdict(event.duplicate)))

    def _ids_duplicated(self, event: events.IdsDuplicated) -> None:
        self._of(event).chunks.duplicate_ids += event.chunks

    def _chunks_loaded(self, event: events.ChunksLoaded) -> None:
        collection = self._of(event)
        collection.chunks.found = event.found
        collection.chunks.distinct_texts = event.distinct_texts
        collection.fields = list(event.fields)
        collection.seconds_by_stage["load"] = event.seconds

    def _chunks_split(self, event: events.ChunksSplit) -> None:
        collection = self._of(event)
        collection.chunks.split, collection.chunks.split_points = event.chunks, event.segments
        collection.chunks.distinct_texts = event.distinct_texts
        collection.seconds_by_stage["split"] = event.seconds

    def _model_resolved(self, event: events.ModelResolved) -> None:
        self._models[event.model] = ModelSummary(**_known(event, ModelSummary))

    def _model_missing(self, event: events.ModelMissing) -> None:
        self.summary.missing_models.append(MissingModel(model=event.model, why=event.why))
        begin = f"continuing without {event.model}"
        if not any(warning.startswith(begin) for warning in self.summary.warnings):  # a later run of a session: no more
            self.summary.warnings.append(f"{begin}: it {event.why}")

    def _model_loaded(self, event: events.ModelLoaded) -> None:
        model = self._models[event.model]
        model.dim, model.kind = None if event.kind == "sparse" else event.dim, event.kind
        model.max_tokens = event.max_tokens
        model.document_prompt = event.document_prompt
        self._model_seconds += event.seconds

    def _mode_chosen(self, event: events.ModeChosen) -> None:
        collection = self._of(event)
        collection.mode, collection.mode_reason = event.mode, event.why
        if len(event.weights) > 1:
            self.summary.ensemble_mode = event.mode
            collection.fusion = FusionSummary(method=event.fusion, weights=event.weights)

    def _lease_acquired(self, event: events.LeaseAcquired) -> None:
        self._lease_began[event.lease_id] = event.timestamp
        self._note_lease(event, "acquire")

    def _lease_released(self, event: events.LeaseReleased) -> None:
        seconds = event.timestamp - self._lease_began.pop(event.lease_id, event.timestamp)
        for device in filter(None, map(self._devices.get, event.devices)):
            device.leased_seconds += max(0.0, seconds)
        self._note_lease(event, "release")
        if event.leftovers:
            self._of(event).warnings.append(
                f"{event.model} left on the device after its lease ended: {'; '.join(event.leftovers)}"
            )

    def _end_leases(self, node: str, timestamp: float) -> None:
        """A node that is lost releases nothing."""
        for lease_id in [each for each in self._lease_began if node_of(each) == node]:
            seconds = max(0.0, timestamp - self._lease_began.pop(lease_id))
            for name, device in self._devices.items():
                device.leased_seconds += seconds if node_of(name) == node else 0.0

    def _model_evicted(self, event: events.ModelEvicted) -> None:
        if self.summary.collections:  # of a model kept between collections: listed under the latest one
            latest = self.summary.collections[-1].collection
            self._note_lease(dataclasses.replace(event, collection=latest), "evict")

    def _note_lease(
        self,
        event: events.LeaseAcquired | events.LeaseReleased | events.ModelEvicted,
        kind: Literal["acquire", "release", "evict"],
    ) -> None:
        leases = self._of(event).leases
        if len(leases) < MOST_LEASES:
            leases.append(LeaseSummary(event_type=kind, **_known(event, LeaseSummary)))

    def _model_placed(self, event: events.ModelPlaced) -> None:
        collection = self._of(event)
        if (collection.collection, event.model_pass) in self._passes:
            self._pass(event).place(event)
        for lease in reversed(collection.leases):
            if lease.lease_id == event.lease_id:
                lease.memory_placed = [dataclasses.asdict(each) for each in event.memory]
                break

    def _turn_finished(self, event: events.TurnFinished) -> None:
        self._of(event).turn_texts.append(event.texts)

    def _pass(self, event: Any) -> PassTotals:
        return self._passes[event.collection or "", event.model_pass]

    def _pass_started(self, event: events.PassStarted) -> None:
        collection = self._of(event)
        begun = PassSummary(began=event.timestamp, **_known(event, PassSummary))
        begun.choice = self._choices.get((collection.collection, event.model_pass))
        model = self._models[event.model]
        model.dtype = event.dtype
        if event.max_tokens is not None:  # also if the model is not loaded, as its store has them
            model.max_tokens, model.document_prompt = event.max_tokens, event.document_prompt
        passes = collection.passes
        if event.model_pass == len(passes):
            passes.append(begun)
            self._passes[collection.collection, event.model_pass] = PassTotals(begun)
            collection.models.append(model.model_copy(update={"weight": event.weight, "kind": event.kind}))
        elif passes[event.model_pass].fingerprint == event.fingerprint:  # it goes on after its devices were lost
            self._pass(event).go_on(event.timestamp)
        else:
            passes[event.model_pass] = begun
            self._pass(event).restart(begun)
        self._pass(event).began = event.timestamp

    def _window_tokenized(self, event: events.WindowTokenized) -> None:
        current = self._pass(event).summary
        current.tokenize_seconds += event.seconds
        current.segments += event.segments

    def _batch_encoded(self, event: events.BatchEncoded) -> None:
        self._batches_encoded(rolled_up(event))
        slowest = self.summary.slowest_batches
        if len(slowest) < SLOWEST or event.forward_seconds > slowest[-1].seconds:
            slow = SlowBatch(seconds=event.forward_seconds, **{**_known(event, SlowBatch), "began": began(event)})
            slowest.append(slow)
            slowest.sort(key=lambda each: -each.seconds)
            del slowest[SLOWEST:]

    def _batches_encoded(self, event: events.BatchesEncoded) -> None:
        self._pass(event).add_batches(event)
        self._nodes.add_batches(event)
        for device in filter(None, map(self._devices.get, event.device.split("+"))):  # or those of a group
            device.batches += event.batches
            device.forward_seconds += event.forward_seconds
        if event.memory.device in self._devices:
            device = self._devices[event.memory.device]
            device.peak_bytes = max(device.peak_bytes, event.peak_held_bytes)
        collection = self._of(event)
        # what a node had encoded when it was lost is encoded again by another
        encoded = [min(each.encoded_texts, each.texts - each.stored_texts) for each in collection.encoding_passes]
        collection.chunks.newly_encoded = max(encoded, default=0)

    def _precision_chosen(self, event: events.PrecisionChosen) -> None:
        collection = self._of(event)
        self._choices[collection.collection, event.model_pass] = PrecisionChoice(
            min_cosine=event.min_cosine,
            way=event.way,
            kept=event.kept,
            measured=[MeasuredWay(**dataclasses.asdict(each)) for each in event.measured],
        )
        collection.seconds_by_stage["check"] = collection.seconds_by_stage.get("check", 0.0) + event.seconds

    def _precision_checked(self, event: events.PrecisionChecked) -> None:
        collection = self._of(event)
        collection.passes[event.model_pass].agreement = Agreement(
            texts=event.texts, mean_cosine=event.mean_cosine, worst_cosine=event.worst_cosine
        )
        collection.seconds_by_stage["check"] = collection.seconds_by_stage.get("check", 0.0) + event.seconds

    def _pass_finished(self, event: events.PassFinished) -> None:
        collection = self._of(event)
        self._pass(event).finish(event)
        counts = collection.chunks
        counts.truncated = max(each.truncated for each in collection.passes)
        counts.pooled = max(each.pooled for each in collection.passes)
        counts.longest_tokens = max(each.longest_tokens for each in collection.passes)
        counts.tokens_lost = max(each.tokens_lost for each in collection.passes)
        counts.embedded = min(each.stored_chunks for each in collection.passes)
        collection.seconds_by_stage["encode"], collection.encode_seconds = encode_seconds(collection)
        collection.seconds_by_stage["model"] += self._model_seconds
        self._model_seconds = 0.0
        update = {"weight": event.weight, "dim": event.dim or None, "kind": self._pass(event).summary.kind}
        collection.models[event.model_pass] = self._models[event.model].model_copy(update=update)

    def _vectors_fused(self, event: events.VectorsFused) -> None:
        collection = self._of(event)
        collection.chunks.embedded, collection.vectors = event.points, list(event.vectors)
        collection.sparse = list(event.sparse)
        if collection.fusion is not None:
            collection.fusion.vectors = [each for each in event.vectors if not each.is_sparse]

    def _export_written(self, event: events.ExportWritten) -> None:
        collection = self._of(event)
        collection.seconds_by_stage["export"] += event.seconds
        collection.exports.append(_export_summary(event.exported, event.seconds))

    def _companion_placed(self, event: events.CompanionPlaced) -> None:
        self._of(event).mitigations.append(
            MitigationSummary(type=event.kind, timestamp=event.timestamp, details=event.details)
        )

    def _mitigated(self, event: events.Mitigated) -> None:
        self._nodes.mitigate(event)
        if event.kind == NODE_LOST.kind:
            self._end_leases(str(event.details.get("device")), event.timestamp)
        self.summary.nodes = self._nodes.listed
        if event.collection is None:  # a node that is lost before there is anything to do
            return
        collection = self._of(event)
        key = (collection.collection, *mitigation_key(event))
        known = self._last_mitigations.get(key)
        # what the event log has added up came after the first ones, which it has counted as this does
        is_kept = event.until is None and self._mitigations.take(event.collection)
        if known is not None and not is_kept:
            known.times, known.until = known.times + event.times, event.until or event.timestamp
            return
        entry = MitigationSummary(type=event.kind, **_known(event, MitigationSummary))
        entry.until = event.until if event.times > 1 else None
        collection.mitigations.append(entry)
        self._last_mitigations[key] = entry

    def _warned(self, event: events.Warned) -> None:
        (self._of(event) if event.collection else self.summary).warnings.append(event.message)

    def _collection_skipped(self, event: events.CollectionSkipped) -> None:
        collection = self._of(event)
        collection.chunks = ChunkCounts(
            found=event.found,
            embedded=event.embedded,
            rejected=event.rejected,
            split=event.split.chunks,
            split_points=event.split.segments,
            distinct_texts=event.distinct_texts,
        )
        collection.vectors, collection.sparse = list(event.vectors), list(event.sparse)
        collection.exports = [_export_summary(exported, seconds=0.0) for exported in event.exports]
        collection.target_qdrant_collection = event.target

    def _collection_finished(self, event: events.CollectionFinished) -> None:
        collection = self._of(event)
        collection.status, collection.error = event.status, event.error
        if event.target_qdrant_collection is not None:
            collection.target_qdrant_collection = event.target_qdrant_collection
        if self.summary.options and self.summary.options.gradient_checkpointing:
            collection.warnings.append(about_checkpointing(collection))
        collection.seconds = event.seconds
        stages = collection.seconds_by_stage
        stages["other"] = max(0.0, event.seconds - sum(seconds for name, seconds in stages.items() if name != "other"))
        self._add_telemetry(collection)

    def _run_finished(self, event: events.RunFinished) -> None:
        self.summary.error, self.summary.seconds = event.error, event.seconds
        self._add_stages()
        for collection in self._collections.values():
            if collection.status is None:
                collection.status, collection.error = "failed", event.error
                self._add_telemetry(collection)
        if self._plan is not None:
            self.summary.plan = self._plan.compare(self.summary)

    def _add_stages(self) -> None:
        stages = self.summary.seconds_by_stage
        stages.setdefault("start", 0.0)
        stages["collections"] = sum(each.seconds for each in self.summary.collections)
        stages["other"] = max(0.0, self.summary.seconds - stages["start"] - stages["collections"])

    def _add_telemetry(self, collection: CollectionSummary) -> None:
        if self._telemetry_of is not None and collection.passes:
            collection.telemetry = self._telemetry_of(collection.collection)


def _known(event: events.Event, part: type[BaseModel]) -> dict[str, Any]:
    """The fields of an event that a part of the summary has too."""
    fields = dataclasses.asdict(event)
    return {key: fields[key] for key in part.model_fields if key in fields}


def _export_summary(exported: ExportedFile, seconds: float) -> ExportSummary:
    return ExportSummary(
        kind=exported.kind,
        path=valid_unicode(str(exported.path)),
        rows=exported.rows,
        size_bytes=exported.size_bytes,
        sha256=exported.sha256,
        seconds=seconds,
    )


def about_checkpointing(collection: CollectionSummary) -> str:
    """What gradient checkpointing did for a collection, and what was done instead."""
    used = sorted({mitigation.type for mitigation in collection.mitigations})
    instead = f"used instead: {', '.join(used)}" if used else "no other mitigation was needed"
    return f"gradient checkpointing saves memory in training only; nothing was switched on, {instead}"
