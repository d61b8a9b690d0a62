"""Build the summary of a run from its events."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
from collections.abc import Callable
from typing import Any, Literal

from ultimate_embedder import events
from ultimate_embedder._version import __version__
from ultimate_embedder.machine import processor_name
from ultimate_embedder.planned import Plan
from ultimate_embedder.report.plan_check import PlanCheck
from ultimate_embedder.report.rejections import RejectionGroups
from ultimate_embedder.summary import (
    Agreement,
    ChunkCounts,
    CollectionSummary,
    DuplicateChunkId,
    ExportSummary,
    FusionSummary,
    LeaseSummary,
    MissingModel,
    MitigationSummary,
    ModelSummary,
    PassSummary,
    RejectedRecord,
    RunOptions,
    RunSummary,
    TelemetrySummary,
    TruncatedChunk,
)
from ultimate_embedder.terminal import valid_unicode
from ultimate_embedder.types import ExportedFile

LIBRARIES = (
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "huggingface-hub",
    "numpy",
    "pyarrow",
    "qdrant-edge-py",
    "qdrant-client",
)
LEARNING_BATCHES = 10  # per device, excluded from the prediction error
MOST_LISTED = 10_000  # more rejected records or duplicate ids are only counted here; events.jsonl has all


class SummaryBuilder:
    """An event sink whose `summary` is always up to date, even if the run fails."""

    def __init__(self, telemetry_of: Callable[[str], TelemetrySummary] | None = None) -> None:
        """`telemetry_of` gives the telemetry of a collection, for a summary that has it."""
        self._telemetry_of = telemetry_of
        self.summary = RunSummary(
            versions=_versions(),
            machine=_machine(),
            started_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        )
        self._collections: dict[str, CollectionSummary] = {}
        self._models: dict[str, ModelSummary] = {}
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.RunStarted: self._run_started,
            events.PlanFound: self._plan_found,
            events.CollectionStarted: self._collection_started,
            events.ChunkRejected: self._chunk_rejected,
            events.IdDuplicated: self._id_duplicated,
            events.ChunksLoaded: self._chunks_loaded,
            events.ChunksSplit: self._chunks_split,
            events.ModelResolved: self._model_resolved,
            events.ModelMissing: self._model_missing,
            events.ModelLoaded: self._model_loaded,
            events.ModeChosen: self._mode_chosen,
            events.LeaseAcquired: self._lease_acquired,
            events.LeaseReleased: self._lease_released,
            events.ModelEvicted: self._model_evicted,
            events.TurnFinished: self._turn_finished,
            events.PassStarted: self._pass_started,
            events.WindowTokenized: self._window_tokenized,
            events.BatchEncoded: self._batch_encoded,
            events.PrecisionChecked: self._precision_checked,
            events.PassFinished: self._pass_finished,
            events.VectorsFused: self._vectors_fused,
            events.ExportWritten: self._export_written,
            events.CompanionPlaced: self._mitigated,
            events.Mitigated: self._mitigated,
            events.Warned: self._warned,
            events.ModelMissing: self._model_missing,
            events.CollectionSkipped: self._collection_skipped,
            events.CollectionFinished: self._collection_finished,
            events.RunFinished: self._run_finished,
        }
        self._plan: PlanCheck | None = None
        self._rejections: dict[str, RejectionGroups] = {}
        self._prediction_errors: dict[tuple[int, str], list[float]] = {}  # by pass and device
        self._pass_began: dict[tuple[str | None, int], float] = {}  # passes that have not ended, and when they began
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
        self.summary.options = RunOptions.model_validate(event.options.as_dict())
        self.summary.command = list(event.command)
        self.summary.chunks = event.chunks
        self.summary.output = event.output
        self.summary.dry_run = event.options.dry_run

    def _plan_found(self, event: events.PlanFound) -> None:
        self._plan = PlanCheck(Plan.model_validate(event.plan))

    def _collection_started(self, event: events.CollectionStarted) -> None:
        collection = self._of(event)
        collection.files = event.files
        # a fresh process goes on with it: it reads the chunks again, and what was encoded stays
        collection.chunks.rejected = collection.chunks.duplicate_ids = 0
        collection.rejected, collection.duplicate_ids = [], []
        self._rejections[collection.collection] = groups = RejectionGroups()
        collection.rejected_by_reason = groups.listed
        self._model_seconds = 0.0
        self._prediction_errors.clear()

    def _chunk_rejected(self, event: events.ChunkRejected) -> None:
        collection = self._of(event)
        collection.chunks.rejected += 1
        if len(collection.rejected) < MOST_LISTED:
            collection.rejected.append(RejectedRecord(**dataclasses.asdict(event.rejected)))
        groups = self._rejections.setdefault(collection.collection, RejectionGroups())
        groups.add(event.rejected)
        collection.rejected_by_reason = groups.listed

    def _id_duplicated(self, event: events.IdDuplicated) -> None:
        collection = self._of(event)
        collection.chunks.duplicate_ids += 1
        if len(collection.duplicate_ids) < MOST_LISTED:
            collection.duplicate_ids.append(DuplicateChunkId(**dataclasses.asdict(event.duplicate)))

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
        fields = dataclasses.asdict(event)
        self._models[event.model] = ModelSummary(
            **{key: fields[key] for key in ModelSummary.model_fields if key in fields}
        )

    def _model_missing(self, event: events.ModelMissing) -> None:
        self.summary.missing_models.append(MissingModel(model=event.model, why=event.why))
        begin = f"continuing without {event.model}"
        if not any(warning.startswith(begin) for warning in self.summary.warnings):  # a later run of a session: no more
            self.summary.warnings.append(f"{begin}: it {event.why}")

    def _model_loaded(self, event: events.ModelLoaded) -> None:
        model = self._models[event.model]
        model.dim = event.dim
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
        self._note_lease(event, "acquire")

    def _lease_released(self, event: events.LeaseReleased) -> None:
        self._note_lease(event, "release")
        if event.leftovers:
            self._of(event).warnings.append(
                f"{event.model} left on the device after its lease ended: {'; '.join(event.leftovers)}"
            )

    def _model_evicted(self, event: events.ModelEvicted) -> None:
        if self.summary.collections:  # of a model kept between collections: listed under the latest one
            latest = self.summary.collections[-1].collection
            self._note_lease(dataclasses.replace(event, collection=latest), "evict")

    def _note_lease(
        self,
        event: events.LeaseAcquired | events.LeaseReleased | events.ModelEvicted,
        kind: Literal["acquire", "release", "evict"],
    ) -> None:
        collection, fields = self._of(event), dataclasses.asdict(event)
        if len(collection.leases) < MOST_LISTED:
            known = {key: fields[key] for key in LeaseSummary.model_fields if key in fields}
            collection.leases.append(LeaseSummary(event_type=kind, **known))

    def _turn_finished(self, event: events.TurnFinished) -> None:
        self._of(event).turn_texts.append(event.texts)

    def _pass_started(self, event: events.PassStarted) -> None:
        collection = self._of(event)
        fields = dataclasses.asdict(event)
        begun = PassSummary(**{key: fields[key] for key in PassSummary.model_fields if key in fields})
        model = self._models[event.model]
        if event.max_tokens is not None:  # also if the model is not loaded, as its store has them
            model.max_tokens, model.document_prompt = event.max_tokens, event.document_prompt
        passes = collection.passes
        if event.model_pass == len(passes):
            passes.append(begun)
            collection.models.append(model.model_copy(update={"weight": event.weight}))
        elif passes[event.model_pass].fingerprint == event.fingerprint:  # it goes on after its devices were lost
            self._pass_continued(passes[event.model_pass], event)
        else:  # with another identity: what was done before is of no use
            passes[event.model_pass] = begun
            for known in [known for known in self._prediction_errors if known[0] == event.model_pass]:
                del self._prediction_errors[known]
        self._pass_began[event.collection, event.model_pass] = event.timestamp

    def _pass_continued(self, current: PassSummary, event: events.PassStarted) -> None:
        began = self._pass_began.pop((event.collection, event.model_pass), None)
        if began is not None:  # it did not come to its end: only events tell how long it had worked
            current.seconds += max(0.0, event.timestamp - began)

    def _window_tokenized(self, event: events.WindowTokenized) -> None:
        current = self._of(event).passes[event.model_pass]
        current.tokenize_seconds += event.seconds
        current.segments += event.segments

    def _batch_encoded(self, event: events.BatchEncoded) -> None:
        collection = self._of(event)
        current = collection.passes[event.model_pass]
        current.batches += 1
        current.encoded_texts += event.texts
        collection.chunks.newly_encoded = max(each.encoded_texts for each in collection.passes)
        current.largest_batch_rows = max(current.largest_batch_rows, event.rows)
        current.packed_batches += event.packed
        current.tokens += event.tokens
        current.padded_tokens += event.padded_tokens
        current.forward_seconds += event.forward_seconds
        current.wait_seconds += event.wait_seconds
        current.fp32_rows += event.fp32_rows
        for counts, key in ((current.tokens_by_device, event.device), (current.tokens_by_dtype, event.dtype)):
            counts[key] = counts.get(key, 0) + event.tokens
        current.reduced_batches += event.rows < event.planned_rows
        current.largest_batch_tokens = max(current.largest_batch_tokens, event.padded_tokens)
        current.peak_memory_bytes = max(current.peak_memory_bytes, event.memory.peak_bytes)
        current.peak_reserved_bytes = max(current.peak_reserved_bytes, event.memory.peak_reserved_bytes)
        if event.predicted_bytes:
            predicted = event.memory_before.allocated_bytes + event.predicted_bytes
            current.predicted_peak_bytes = max(current.predicted_peak_bytes, predicted)
        if event.measured_bytes and event.predicted_bytes:
            error = abs(event.predicted_bytes - event.measured_bytes) / event.measured_bytes
            self._prediction_errors.setdefault((event.model_pass, event.device), []).append(error)

    def _precision_checked(self, event: events.PrecisionChecked) -> None:
        collection = self._of(event)
        collection.passes[event.model_pass].agreement = Agreement(
            texts=event.texts, mean_cosine=event.mean_cosine, worst_cosine=event.worst_cosine
        )
        collection.seconds_by_stage["check"] = collection.seconds_by_stage.get("check", 0.0) + event.seconds

    def _pass_finished(self, event: events.PassFinished) -> None:
        collection = self._of(event)
        current = collection.passes[event.model_pass]
        current.dim, current.truncated, current.pooled = event.dim, event.truncated, event.pooled
        current.longest_tokens, current.tokens_lost = event.longest_tokens, event.tokens_lost
        current.lost_share = event.tokens_lost / max(1, event.truncated_tokens)
        current.lost_most = [TruncatedChunk(**dataclasses.asdict(each)) for each in event.lost_most]
        current.seconds += event.seconds
        self._pass_began.pop((event.collection, event.model_pass), None)
        current.batch_rows = max(current.batch_rows, event.batch_rows)
        if event.devices or current.tokens_by_device:  # those that worked; before, those that were planned
            current.devices = _in_order([*event.devices, *current.tokens_by_device], planned=current.devices)
        if len(current.tokens_by_dtype) == 1:
            (current.dtype,) = current.tokens_by_dtype
        settled = [
            error
            for (number, _), errors in self._prediction_errors.items()
            for error in errors[LEARNING_BATCHES:]
            if number == event.model_pass
        ]
        if settled:
            current.prediction_error = sorted(settled)[int(0.95 * (len(settled) - 1))]
        if current.tokens:
            current.padding_ratio = current.padded_tokens / current.tokens
            current.texts_per_second = current.encoded_texts / current.seconds
            current.tokens_per_second = current.tokens / current.seconds
        counts = collection.chunks
        counts.truncated = max(each.truncated for each in collection.passes)
        counts.pooled = max(each.pooled for each in collection.passes)
        counts.longest_tokens = max(each.longest_tokens for each in collection.passes)
        counts.tokens_lost = max(each.tokens_lost for each in collection.passes)
        current.stored_chunks = event.stored_chunks
        collection.chunks.embedded = min(each.stored_chunks for each in collection.passes)
        seconds = [each.seconds for each in collection.passes]
        collection.seconds_by_stage["encode"] = max(seconds) if collection.mode == "simultaneous" else sum(seconds)
        collection.seconds_by_stage["model"] += self._model_seconds
        self._model_seconds = 0.0
        known = self._models[event.model].model_copy(update={"weight": event.weight, "dim": event.dim})
        collection.models[event.model_pass] = known

    def _vectors_fused(self, event: events.VectorsFused) -> None:
        collection = self._of(event)
        collection.chunks.embedded, collection.vectors = event.points, list(event.vectors)
        if collection.fusion is not None:
            collection.fusion.vectors = list(event.vectors)

    def _export_written(self, event: events.ExportWritten) -> None:
        collection = self._of(event)
        collection.seconds_by_stage["export"] += event.seconds
        collection.exports.append(_export_summary(event.exported, event.seconds))

    def _mitigated(self, event: events.Mitigated | events.CompanionPlaced) -> None:
        entry = MitigationSummary(type=event.kind, timestamp=event.timestamp, details=event.details)
        self._of(event).mitigations.append(entry)

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
        collection.vectors = list(event.vectors)
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
        self._add_telemetry(collection)

    def _run_finished(self, event: events.RunFinished) -> None:
        self.summary.error, self.summary.seconds = event.error, event.seconds
        for collection in self._collections.values():
            if collection.status is None:
                collection.status, collection.error = "failed", event.error
                self._add_telemetry(collection)
        if self._plan is not None:
            self.summary.plan = self._plan.compare(self.summary)

    def _add_telemetry(self, collection: CollectionSummary) -> None:
        if self._telemetry_of is not None and collection.passes:
            collection.telemetry = self._telemetry_of(collection.collection)


def _in_order(names: list[str], planned: list[str]) -> list[str]:
    """The devices that worked, each once, in the order of the plan; a group is taken apart."""
    worked = {name for group in names for name in group.split("+")}
    return [*(name for name in planned if name in worked), *sorted(worked - set(planned))]


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


def _versions() -> dict[str, str]:
    found = {"ultimate-embedder": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            found[library] = "not installed"
    return found


def _machine() -> dict[str, Any]:
    import psutil

    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }
