"""The plan of one collection: chunks, passes, memory, disk, time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ultimate_embedder.chunks import ChunkTable, LoadedChunks, load_chunks, split_chunks
from ultimate_embedder.config import RunConfig
from ultimate_embedder.devices import DescribedDevice, describe_cpu
from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.estimate.calibrate import Sample
from ultimate_embedder.estimate.cluster import cluster_mode, cluster_modes
from ultimate_embedder.estimate.counts import BatchCutting, PassCounts, TellNowAndThen, count_pass
from ultimate_embedder.estimate.disk import TOKEN_BYTES, export_bytes, store_bytes
from ultimate_embedder.estimate.memory import (
    PassMemory,
    Placed,
    compare_modes,
    needs_of,
    place_passes,
    rooms_of,
    stages_of,
)
from ultimate_embedder.estimate.models import PlanModels
from ultimate_embedder.estimate.stored import find_removed, find_stored, settled
from ultimate_embedder.estimate.words import CountedWords, count_words
from ultimate_embedder.events import ChunkRejected, Emit, Event, Warned
from ultimate_embedder.execution import EnsembleSplitter, TableTexts, batch_limits, first_occurrences
from ultimate_embedder.export import find_exports
from ultimate_embedder.models import BM25, SegmentCutter, resolve_bm25, uses_attention
from ultimate_embedder.output import Output
from ultimate_embedder.planned import PlannedCollection, PlannedPass
from ultimate_embedder.planning import PassPlan, Rows, Stage, as_candidate, plan_passes, settle_mode
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import Collection, VectorSpec
from ultimate_embedder.vectors import fingerprint, plan_fusion

MOST_REASONS = 5
Report = Callable[[str, int, int], None]
"""Told what is counted, how many texts so far, and of how many."""


@dataclass(frozen=True)
class Context:
    """What the plans of all collections share."""

    config: RunConfig
    devices: tuple[DescribedDevice, ...]
    models: PlanModels
    scratch: Path
    emit: Emit
    report: Report
    stop: StopSwitch
    sample: Sample | None = None
    """Filled with texts, if there is to be a calibration."""
    nodes: int | None = None
    """So many machines with these devices; None for one that is no node of a cluster."""

    def devices_for(self, collection: str) -> tuple[DescribedDevice, ...]:
        """The devices that a collection may use."""
        return (describe_cpu(),) if collection in self.config.force_cpu else self.devices


@dataclass(frozen=True)
class CountedPass:
    """A pass, what it has to do, and where."""

    plan: PassPlan
    memory: PassMemory
    counts: PassCounts
    stored_texts: int
    placed: Placed | None = None


@dataclass(frozen=True)
class CountedCollection:
    """A collection of which everything but the time is known."""

    planned: PlannedCollection
    passes: tuple[CountedPass, ...] = ()
    stages: tuple[Stage, ...] = ()
    in_modes: Mapping[str, tuple[tuple[Stage, ...], tuple[CountedPass, ...]]] = field(default_factory=dict)
    """Stages and passes as they would be in each mode, where there are several models."""
    load_seconds: float = 0.0
    words_seconds: float | None = None
    """How long counting words took here; None without BM25."""
    scratch_bytes: int = 0
    notes: tuple[str, ...] = ()


def count_collection(collection: Collection, context: Context) -> CountedCollection:
    """Read, tokenise, cut into batches and place, without computing anything; what is wrong is in `error`."""
    planned = PlannedCollection(collection=collection.name, files=len(collection.files), error=collection.problem)
    if collection.problem is not None:
        return CountedCollection(planned)
    config = context.config
    own = Output(config.output).collection(collection.name)
    sparse = [BM25 for each in config.sparse if each.bm25]
    if config.skip_existing and (existing := find_exports(own.folder, config.exports, config.hnsw, sparse)):
        skipped = {"skipped": True, "found": existing.found, "points": existing.embedded, "rejected": existing.rejected}
        vectors = {"distinct_texts": existing.distinct_texts, "vectors": list(existing.vectors)}
        return CountedCollection(planned.model_copy(update={**skipped, **vectors}))
    try:
        return _Counting(collection, context, planned).count()
    except UltimateEmbedderError as error:
        return CountedCollection(planned.model_copy(update={"error": str(error)}))


@dataclass
class _Counting:
    collection: Collection
    context: Context
    planned: PlannedCollection
    in_modes: dict[str, tuple[tuple[Stage, ...], tuple[CountedPass, ...]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    reasons: dict[str, None] = field(default_factory=dict)

    def count(self) -> CountedCollection:
        config, name = self.context.config, self.collection.name
        table_path = self.context.scratch / f"{name}.chunks"
        began = time.perf_counter()
        loaded = load_chunks(self.collection, table_path, self._take, config.fields)
        load_seconds = time.perf_counter() - began
        self._note_loaded(loaded)
        digest, (plans, words) = loaded.table.digest, self._plans()
        try:
            if not len(loaded.table):
                problem = f"all {loaded.found} records are rejected" if loaded.found else None
                return CountedCollection(self._with(digest=digest, error=problem), load_seconds=load_seconds)
            if config.overlong == "split" and plans:
                loaded = self._split(loaded, plans)
            self._with(digest=digest, distinct_texts=loaded.table.distinct_texts(), points=len(loaded.table))
            counted = self._counted_words(loaded.table, words) if words else None
            return self._counted(loaded.table, plans, load_seconds, counted)
        finally:
            loaded.table.remove()

    def _counted_words(self, table: ChunkTable, plan: PassPlan) -> CountedWords:
        tell = self._teller(f"words for {plan.name}", table.distinct_texts())
        counted = count_words(plan, self.collection.name, table, self.context.config, tell)
        self.notes += [f"{self.collection.name}: {note}" for note in counted.notes]
        return counted

    def _teller(self, what: str, total: int) -> Callable[[int], None]:
        """Shows how many texts are counted, and ends it if the user wants that."""
        context, name = self.context, self.collection.name
        tell = TellNowAndThen(lambda done: context.report(f"{name}: {what}", done, total))

        def check_and_tell(done: int) -> None:
            context.stop.check()
            tell(done)

        return check_and_tell

    def _counted(
        self, table: ChunkTable, plans: Sequence[PassPlan], load_seconds: float, words: CountedWords | None
    ) -> CountedCollection:
        config, name = self.context.config, self.collection.name
        devices = self.context.devices_for(name)
        passes = [self._count_pass(plan, table, devices[0]) for plan in plans]
        stages, passes = self._place(passes, devices)
        removed = find_removed(Output(config.output).collection(name).folder, table)
        vectors = self._vectors(plans)
        vectors += [VectorSpec(words.planned.model, None, "sparse")] if words else []
        self._with(
            words=words.planned if words else None,
            passes=[self._planned_pass(each, table) for each in passes],
            vectors=vectors,
            removed_texts=removed.texts,
            removed_points=removed.points,
            store_bytes=sum(store_bytes(each.counts.texts, self._dim(each.plan)) for each in passes)
            + (words.store_bytes if words else 0),
            export_bytes=export_bytes(name, table, vectors, config, words.sparse_bytes(len(table)) if words else None),
        )
        shared = max((each.counts.tokens for each in passes), default=0) * TOKEN_BYTES if len(passes) > 1 else 0
        size = table.path.stat().st_size + shared
        return CountedCollection(
            self.planned,
            tuple(passes),
            stages,
            self.in_modes,
            load_seconds,
            words.seconds if words else None,
            size,
            tuple(self.notes),
        )

    def _with(self, **values: object) -> PlannedCollection:
        self.planned = self.planned.model_copy(update=values)
        return self.planned

    def _take(self, event: Event) -> None:
        if isinstance(event, ChunkRejected):
            if len(self.reasons) < MOST_REASONS:
                place = "" if event.rejected.position is None else f" record {event.rejected.position}"
                self.reasons.setdefault(f"{event.rejected.file}{place}: {event.rejected.reason}")
        elif isinstance(event, Warned):
            self.notes.append(f"{self.collection.name}: {event.message}")

    def _note_loaded(self, loaded: LoadedChunks) -> None:
        self._with(found=loaded.found, rejected=loaded.rejected, rejected_because=list(self.reasons))

    def _plans(self) -> tuple[list[PassPlan], PassPlan | None]:
        """The passes of dense models, and that of BM25."""
        config, models = self.context.config, self.context.models.chosen
        if not models:
            return [], None
        device = self.context.devices_for(self.collection.name)[0]
        alone = self.collection.name in config.no_ensemble
        plans = plan_passes(
            config,
            models[:1] if alone else models,
            device.dtype(config.precision),
            on_cpu=not device.has_ceiling,
            has_vnni=device.has_vnni,
            sparse=[(each, resolve_bm25(each.bm25)) for each in config.sparse if each.bm25],
        )
        dense = [settled(plan, self.collection.name, config) for plan in plans if not plan.counts_words]
        return dense, next((plan for plan in plans if plan.counts_words), None)

    def _split(self, loaded: LoadedChunks, plans: Sequence[PassPlan]) -> LoadedChunks:
        """The chunks in segments that fit all models, as a run would split them."""
        cutters = [SegmentCutter(self.context.models.encoder(plan), self.context.config.overlap) for plan in plans]
        target = self.context.scratch / f"{self.collection.name}.segments"
        return split_chunks(loaded, target, EnsembleSplitter(cutters, self.context.stop))

    def _count_pass(self, plan: PassPlan, table: ChunkTable, device: DescribedDevice) -> CountedPass:
        context, encoder = self.context, self.context.models.encoder(plan)
        stored = find_stored(plan, self.collection.name, context.config, table.keys)
        self.notes += [f"{self.collection.name}: {note}" for note in stored.notes]
        first = first_occurrences(table.keys)
        texts = TableTexts(table, first & ~stored.mask)
        how = BatchCutting(
            batch_limits(plan, device, encoder),
            on_card=device.has_ceiling,
            packs=plan.identity.layout == "packed" and uses_attention(encoder.model),
        )
        tell = self._teller(f"tokens for {plan.name}", texts.count(Rows(0, len(table))))
        counts = count_pass(texts, Rows(0, len(table)), encoder, plan, how, tell)
        if context.sample is not None and plan.number == 0:
            self._sample(texts, table, plan)
        memory = PassMemory(plan, counts.shapes, encoder)
        return CountedPass(plan, memory, counts, int((first & stored.mask).sum()))

    def _sample(self, texts: TableTexts, table: ChunkTable, plan: PassPlan) -> None:
        """Keep some texts for a calibration: the first windows are as good as any."""
        sample, encoder = self.context.sample, self.context.models.encoder(plan)
        for _, window in texts.read(Rows(0, min(len(table), 8192))):
            if sample is not None:
                sample.add(window, encoder.tokenize(window).lengths.tolist())

    def _place(
        self, passes: list[CountedPass], devices: Sequence[DescribedDevice]
    ) -> tuple[tuple[Stage, ...], list[CountedPass]]:
        """Settle the mode, and find out what each pass takes on its devices."""
        config, memories = self.context.config, [each.memory for each in passes]
        if not passes:
            return (), []
        busy = [each for each in memories if each.has_work]
        cards = [device for device in devices if device.has_ceiling]
        if self.context.nodes is not None:
            return self._place_on_nodes(passes, devices, self.context.nodes)
        mode, why = settle_mode(
            config.mode,
            len(passes),
            [each.plan.name for each in busy],
            [room for room in rooms_of(devices) if room.has_ceiling],
            lambda: needs_of(busy, cards),
            share=config.companions == "share",
        )
        modes = list(compare_modes(memories, devices, config)) if len(passes) > 1 and busy else []
        self._with(mode=mode, mode_reason=why, modes=modes)
        for other in modes:
            stages, placed = self._place_in(other.mode, passes, devices)
            self.in_modes[other.mode] = stages, tuple(placed)
        return self._place_in(mode, passes, devices)

    def _place_on_nodes(
        self, passes: list[CountedPass], devices: Sequence[DescribedDevice], nodes: int
    ) -> tuple[tuple[Stage, ...], list[CountedPass]]:
        """Whatever the mode, a node has one model at a time, on all its devices."""
        config, memories = self.context.config, [each.memory for each in passes]
        mode, why = cluster_mode(config.mode, len(passes))
        several = len(passes) > 1 and any(each.has_work for each in memories)
        modes = list(cluster_modes(memories, devices, config, nodes)) if several else []
        self._with(mode=mode, mode_reason=why, modes=modes)
        stages, placed = self._place_in("exclusive" if len(passes) > 1 else mode, passes, devices)
        self.in_modes.update({each.mode: (stages, tuple(placed)) for each in modes})
        return stages, placed

    def _place_in(
        self, mode: str, passes: list[CountedPass], devices: Sequence[DescribedDevice]
    ) -> tuple[tuple[Stage, ...], list[CountedPass]]:
        config, memories = self.context.config, [each.memory for each in passes]
        stages = stages_of(mode, memories, devices, config)
        placed = {each.plan.number: each for each in place_passes(stages, memories, devices, describe_cpu, config)}
        return stages, [replace(each, placed=placed.get(each.plan.number)) for each in passes]

    def _dim(self, plan: PassPlan) -> int:
        return plan.identity.dim or self.context.models.encoder(plan).dim

    def _vectors(self, plans: Sequence[PassPlan]) -> list[VectorSpec]:
        if not plans:
            return []
        parts = [as_candidate(plan.model, plan.weight, self._dim(plan)) for plan in plans]
        return list(plan_fusion(self.context.config.fusion, parts).vectors)

    def _planned_pass(self, each: CountedPass, table: ChunkTable) -> PlannedPass:
        plan, counts, cards = each.plan, each.counts, each.placed.cards if each.placed else {}
        described = self.context.models.described(plan)
        return PlannedPass(
            model=plan.name,
            model_pass=plan.number,
            fingerprint=fingerprint(plan.identity) if plan.identity.model_digest else None,
            dtype=plan.identity.dtype,
            devices=[device.name for device in each.placed.devices] if each.placed else [],
            texts=table.distinct_texts(),
            stored_texts=each.stored_texts,
            new_texts=counts.texts,
            tokens=counts.tokens,
            padded_tokens=counts.padded_tokens,
            exact=not described.stand_in and each.memory.encoder.tokenizes,
            batches=counts.batches,
            largest_batch_rows=counts.largest_rows,
            largest_batch_tokens=counts.largest_tokens,
            batches_in_parts=max((card.in_parts for card in cards.values()), default=0),
            batches_too_large=max((card.too_large for card in cards.values()), default=0),
            truncated=counts.truncated,
            tokens_lost=counts.tokens_lost,
            lost_share=counts.tokens_lost / max(1, counts.text_tokens),
            longest_tokens=counts.longest_tokens,
            lengths=list(counts.lengths),
            peak_bytes={name: card.peak_bytes for name, card in cards.items()},
        )
