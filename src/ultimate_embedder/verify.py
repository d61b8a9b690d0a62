"""Check an output: every checksum, and a sample of vectors recomputed from their texts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from ultimate_embedder.chunks import find_collections, load_chunks, text_key
from ultimate_embedder.config import HubAccess, expand_pattern
from ultimate_embedder.errors import ModelError, UltimateEmbedderError
from ultimate_embedder.export import (
    PointsFile,
    check_export,
    journal_problems,
    read_export_journal,
    read_uploads,
)
from ultimate_embedder.find import encode_texts, read_evaluations, resolve_same_model, summary_fusion
from ultimate_embedder.models import (
    Encoder,
    SegmentCutter,
    WordCounter,
    load_encoder,
    load_sparse_model,
    row_cosines,
)
from ultimate_embedder.output import CollectionOutput, Output, PassOutput, open_output
from ultimate_embedder.sparse import SparseVectors, sparse_cosines, sparse_from_dense, sparse_from_rows
from ultimate_embedder.state import Damaged
from ultimate_embedder.summary import CollectionSummary, PassSummary, RunSummary
from ultimate_embedder.types import ModelKind, PassIdentity, SparseFacts
from ultimate_embedder.vectors import (
    UNNAMED,
    Vectors,
    VectorStore,
    overflow_note,
    pass_problems,
    read_agreement,
    read_identity,
    read_ledger,
    token_problems,
    weigh_counts,
)

LEAST_COSINE = {"float32": 0.9999, "float16": 0.999, "bfloat16": 0.99, "int8": 0.9}
READ_ROWS = 1024

Item = TypeVar("Item")


@dataclass
class Verification:
    """What was checked, what is damaged, and what could not be checked."""

    shards: int = 0
    exports: int = 0
    vectors: int = 0
    mismatches: int = 0
    damaged: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What is as it should be, and still worth knowing."""


def verify_output(folder: Path, sample: int, access: HubAccess) -> Verification:
    """Recompute the checksum of every shard and export, and the vectors of `sample` texts of each collection."""
    output = open_output(folder)
    found = Verification()
    summary, problem = output.try_summary()
    found.damaged += [problem] if problem else []
    verifier = _Verifier(output, summary, sample, access, found)
    for collection in output:
        damaged = [*_damaged_passes(collection, found), *_damaged_exports(collection, found)]
        found.damaged += damaged
        if damaged:
            verifier.not_checked(collection.name, "no vectors are recomputed while its files are damaged")
        elif sample:
            verifier.compare(collection)
    found.damaged += _damaged_evaluations(output)
    for entry in summary.collections if summary else ():
        if entry.status == "completed" and entry.collection not in output.collections:
            verifier.not_checked(entry.collection, "its folder is missing")
    if not found.shards:
        verifier.not_checked(str(folder), "it has no vectors")
    return found


def _damaged_passes(collection: CollectionOutput, found: Verification) -> Iterator[str]:
    for stored in collection.passes:
        found.shards += len(read_ledger(stored.folder).lines)
        yield from pass_problems(stored.folder)
    for folder in sorted(collection.store.glob("*/")):
        notes = (read_agreement(folder), overflow_note(folder))
        yield from (str(note) for note in notes if isinstance(note, Damaged))
    yield from token_problems(collection.store)


def _damaged_evaluations(output: Output) -> list[str]:
    """What is damaged of what `evaluate` keeps: it is computed again by the next one."""
    problems = [
        each for collection in output for stored in collection.query_passes for each in pass_problems(stored.folder)
    ]
    evaluated = read_evaluations(output)
    problems += [str(evaluated)] if isinstance(evaluated, Damaged) else []
    return [f"{problem}; run evaluate again" for problem in problems]


def _damaged_exports(collection: CollectionOutput, found: Verification) -> Iterator[str]:
    yield from journal_problems(collection.folder)
    uploaded = read_uploads(collection.folder)
    if isinstance(uploaded, Damaged):
        yield str(uploaded)
    journal = read_export_journal(collection.folder)
    for kind, noted in journal.items():
        found.exports += 1
        path = collection.folder / noted["name"]
        same_points = journal.get("parquet", {}).get("identity") == noted.get("identity")
        points = PointsFile.lazy_batches(collection.points_file, READ_ROWS) if same_points else None
        try:
            state = check_export(collection.folder, kind, noted, points)
        except UltimateEmbedderError as error:
            found.unchecked.append(f"not checked: {path}: {error}")
            continue
        if state.remark:
            found.remarks.append(f"{path} {state.remark}")
        if state.problem:
            yield f"{path} {state.problem}"


@dataclass(frozen=True)
class _Sample:
    """Some texts of a collection, and what was exported for them."""

    texts: list[str]
    exported: Vectors | None = None
    """By name, one row per text; None if the texts are not from the points file."""
    sparse: Mapping[str, tuple[SparseFacts, SparseVectors]] = field(default_factory=dict)
    """The same for sparse vectors, by fingerprint of the pass."""

    @property
    def keys(self) -> np.ndarray:
        return np.array([text_key(text) for text in self.texts], np.uint64).reshape(-1, 2)


@dataclass(frozen=True)
class _Recomputed:
    """Recomputed vectors of a pass, one row per text; NaN for texts that the pass has not stored."""

    identity: PassIdentity
    vectors: np.ndarray
    stored: np.ndarray
    """Mask of the rows that are stored."""


class _Verifier:
    """Recomputes vectors and compares them."""

    def __init__(
        self, output: Output, summary: RunSummary | None, sample: int, access: HubAccess, found: Verification
    ) -> None:
        self._output = output
        self._summary = summary
        self._sample = sample
        self._access = access
        self._found = found
        self._encoders: dict[tuple[str, int | None, int | None], Encoder] = {}

    def not_checked(self, what: str, why: object) -> None:
        """Record what could not be checked."""
        self._found.unchecked.append(f"not checked: {what}: {why}")

    def compare(self, collection: CollectionOutput) -> None:
        """Compare a sample of a collection's vectors, in the store and in the points file."""
        passes = [stored for stored in collection.passes if read_ledger(stored.folder).lines]
        if not passes:
            return
        try:
            sample = self._sample_texts(collection)
        except UltimateEmbedderError as error:
            self.not_checked(collection.name, error)
            return
        recomputed: dict[str, _Recomputed] = {}
        for stored in passes:
            identity = read_identity(stored.folder)
            try:
                if identity is not None and identity.kind == "sparse":
                    self._compare_sparse(collection, stored, identity, sample)
                else:
                    recomputed[stored.fingerprint] = self._compare_stored(collection, stored, sample)
            except UltimateEmbedderError as error:
                self.not_checked(collection.name, error)
        if sample.exported is not None:
            self._compare_exported(collection, sample, sample.exported, recomputed)

    def _compare_sparse(
        self, collection: CollectionOutput, stored: PassOutput, identity: PassIdentity, sample: _Sample
    ) -> None:
        """Compare sparse vectors: those that are stored, and those that were exported of this pass."""
        store = VectorStore(collection.store, identity, read_only=True)
        held = np.flatnonzero(store.holds(sample.keys))
        if not len(held):
            raise ModelError(f"none of the sampled texts has a vector in {stored.folder} ({identity.model})")
        texts = [sample.texts[row] for row in held]
        ours = self._recompute_sparse(store, identity, texts)
        self._found.vectors += len(texts)
        cosines = sparse_cosines(ours, store.read(sample.keys[held]))
        self._note_cosines(stored.folder, identity.model, texts, cosines, identity)
        if found := sample.sparse.get(stored.fingerprint):
            facts, exported = found
            if facts.bm25 is not None and facts.avg_len is not None:
                ours = weigh_counts(ours, facts.bm25, facts.avg_len)
            cosines = sparse_cosines(ours, exported.take(held))
            self._note_cosines(collection.points_file, facts.name, texts, cosines, identity)

    def _recompute_sparse(self, store: VectorStore, identity: PassIdentity, texts: list[str]) -> SparseVectors:
        if identity.bm25 is not None:
            counter = WordCounter(identity.bm25)
            if counter.digest() != identity.model_digest:
                raise ModelError("the installed qdrant-edge-py tells words apart in another way than the one before")
            return counter.count(texts)
        encoder = self._encoder(store, identity)
        cutter = SegmentCutter(encoder, identity.overlap) if identity.overlong == "pool" else None
        return sparse_from_dense(encode_texts(encoder, texts, cutter=cutter))

    def _compare_stored(self, collection: CollectionOutput, stored: PassOutput, sample: _Sample) -> _Recomputed:
        identity = read_identity(stored.folder)
        if identity is None:
            raise ModelError(f"{stored.folder} was written by another version of ultimate-embedder")
        store = VectorStore(collection.store, identity, read_only=True)
        held = store.holds(sample.keys)
        if not held.any():
            raise ModelError(f"none of the sampled texts has a vector in {stored.folder} ({identity.model})")
        encoder = self._encoder(store, identity)
        texts = [text for text, is_held in zip(sample.texts, held, strict=True) if is_held]
        cutter = SegmentCutter(encoder, identity.overlap) if identity.overlong == "pool" else None
        computed = encode_texts(encoder, texts, identity.dim, cutter)
        vectors = np.full((len(held), computed.shape[1]), np.nan, np.float32)
        vectors[held] = computed
        self._found.vectors += len(texts)
        self._note_mismatches(stored.folder, identity.model, texts, computed, store.read(sample.keys[held]), identity)
        return _Recomputed(identity, vectors, held)

    def _compare_exported(
        self, collection: CollectionOutput, sample: _Sample, exported: Vectors, recomputed: dict[str, _Recomputed]
    ) -> None:
        path = collection.points_file
        try:
            fused, made_of = self._fuse(collection, exported, recomputed)
            if _shapes(fused) != _shapes(exported):
                raise ModelError("its vectors are not those of the last run")
        except UltimateEmbedderError as error:
            self.not_checked(collection.name, f"{path.name}: {error}")
            return
        rows = np.logical_and.reduce([each.stored for each in made_of])
        texts = [text for text, is_stored in zip(sample.texts, rows, strict=True) if is_stored]
        worst = min((each.identity for each in made_of), key=_least_cosine)
        for name, vectors in fused.items():
            self._note_mismatches(path, name, texts, vectors[rows], exported[name][rows], worst)

    def _note_mismatches(
        self, path: Path, name: str, texts: list[str], ours: np.ndarray, theirs: np.ndarray, identity: PassIdentity
    ) -> None:
        self._note_cosines(path, name, texts, row_cosines(ours, theirs), identity)

    def _note_cosines(
        self, path: Path, name: str, texts: list[str], cosines: np.ndarray, identity: PassIdentity
    ) -> None:
        which = f"{name} vector" if name else "vector"
        for text, cosine in zip(texts, cosines, strict=True):
            if not cosine >= _least_cosine(identity):
                self._found.mismatches += 1
                words = f"the {which} of {text[:40]!r} does not match its text (cosine {cosine:.4f})"
                self._found.damaged.append(f"{path}: {words}")

    def _fuse(
        self, collection: CollectionOutput, exported: Vectors, recomputed: dict[str, _Recomputed]
    ) -> tuple[Vectors, list[_Recomputed]]:
        """The expected vectors of the sampled texts in the points file, and the passes they are made from."""
        entry = self._entry(collection.name)
        if self._summary is None or entry is None or entry.status == "skipped_existing":
            identities = [read_identity(stored.folder) for stored in collection.passes]
            if len(recomputed) < sum(each is None or each.kind == "dense" for each in identities):
                raise ModelError("there is no summary that says which of the stored vectors it was made from")
            return _fuse_without_summary(exported, list(recomputed.values()))
        if entry.status != "completed":
            raise ModelError("the last run did not complete, so the file may be of an earlier run")
        missing = [each.model for each in entry.dense_passes if each.fingerprint not in recomputed]
        if missing:
            raise ModelError(f"vectors of {', '.join(missing)} were not recomputed")
        made_of = [recomputed[each.fingerprint] for each in entry.dense_passes]
        return summary_fusion(self._summary, entry).fuse([each.vectors for each in made_of]), made_of

    def _encoder(self, store: VectorStore, identity: PassIdentity) -> Encoder:
        """The model of a pass, in fp32 on the CPU; its files and its prompt must not have changed."""
        is_sparse = identity.kind == "sparse"
        kind: ModelKind = "sparse" if is_sparse else "embedder"
        model = resolve_same_model(identity.model, identity.model_digest, self._summary, self._access, kind=kind)
        facts = store.encoder_facts
        max_tokens, token_cap = identity.max_tokens, None
        if facts is not None:
            max_tokens = facts.max_tokens
        elif self._pass_summary(store.folder.name) and self._summary and (options := self._summary.options):
            max_tokens, token_cap = options.max_tokens, options.token_cap
        key = (model.digest, max_tokens, token_cap)
        trusted = self._access.trusted
        if key not in self._encoders and is_sparse:
            self._encoders[key] = load_sparse_model(model, "float32", max_tokens, trusted, token_cap=token_cap)
        elif key not in self._encoders:
            self._encoders[key] = load_encoder(model, "float32", "cpu", max_tokens, trusted, token_cap=token_cap)
        encoder = self._encoders[key]
        if facts is not None and facts.document_prompt != encoder.document_prompt:
            raise ModelError(f"{model.name} had the document prompt {facts.document_prompt!r}, and now has another")
        return encoder

    def _sample_texts(self, collection: CollectionOutput) -> _Sample:
        if collection.points_file.exists():
            return _from_points(PointsFile.open(collection.points_file), self._sample)
        if collection.jsonl.exists():
            with open(collection.jsonl, "rb") as lines:
                chosen = _choose(lines, self._sample)
            return _Sample([json.loads(line)["payload"]["text"] for line in chosen])
        if self._chunk_paths():
            return _Sample(_choose(self._chunk_texts(collection), self._sample))
        where = f"not at {self._summary.chunks}" if self._summary else "at an unknown path, as there is no summary"
        names = f"{collection.points_file.name} and {collection.jsonl.name}"
        raise ModelError(f"there are no texts to recompute vectors from: no {names}, and the chunk files are {where}")

    def _chunk_paths(self) -> list[Path]:
        """The inputs of the run, those that are left."""
        if self._summary is None:
            return []
        given = self._summary.options.chunks if self._summary.options else [self._summary.chunks]
        return [path for each in given if each for path in expand_pattern(Path(each)) if path.exists()]

    def _chunk_texts(self, collection: CollectionOutput) -> Iterator[str]:
        """Texts in the chunk files that have a vector in any pass."""
        options = self._summary.options if self._summary else None
        name = options.name if options else None
        identities = [read_identity(stored.folder) for stored in collection.passes]
        stores = [VectorStore(collection.store, each, read_only=True) for each in identities if each is not None]
        with TemporaryDirectory(prefix="ultimate-embedder-") as scratch:
            inputs, skip = self._chunk_paths(), self._output.folder
            for found in find_collections(inputs, (collection.name,), skip, name).collections:
                spool = CollectionOutput(Path(scratch)).chunk_table
                table = load_chunks(found, spool, lambda event: None, options.fields if options else None).table
                held = np.logical_or.reduce([store.holds(table.keys) for store in stores])
                for block in table.blocks(held):
                    yield from (text for row, text in enumerate(block.texts, block.start) if held[row])

    def _entry(self, collection: str) -> CollectionSummary | None:
        entries = self._summary.collections if self._summary else []
        return next((each for each in entries if each.collection == collection), None)

    def _pass_summary(self, fingerprint: str) -> PassSummary | None:
        entries = self._summary.collections if self._summary else []
        return next((each for entry in entries for each in entry.passes if each.fingerprint == fingerprint), None)


def _fuse_without_summary(exported: Vectors, passes: list[_Recomputed]) -> tuple[Vectors, list[_Recomputed]]:
    """Match each exported vector to the one pass it can be from."""
    if UNNAMED in exported and len(passes) == 1:
        return {UNNAMED: passes[0].vectors}, passes
    by_name = {name: [each for each in passes if each.identity.model == name] for name in exported}
    if any(len(found) != 1 for found in by_name.values()):
        raise ModelError("there is no summary that says which of the stored vectors it was made from")
    return {name: found[0].vectors for name, found in by_name.items()}, [found[0] for found in by_name.values()]


def _from_points(points: PointsFile, count: int) -> _Sample:
    chosen = set(random.sample(range(points.points), min(count, points.points)))
    texts: list[str] = []
    vectors: dict[str, list[Any]] = {spec.name: [] for spec in points.vectors}
    start = 0
    for ids, matrices, payloads in points.batches(READ_ROWS):
        for row in range(len(ids)):
            if start + row in chosen:
                texts.append(payloads[row]["text"])
                for name, matrix in matrices.items():
                    vectors[name].append(matrix[row])
        start += len(ids)
    sparse = {each.fingerprint: (each, sparse_from_rows(vectors.pop(each.name))) for each in points.sparse}
    return _Sample(texts, {name: np.array(rows) for name, rows in vectors.items()}, sparse)


def _choose(items: Iterable[Item], count: int) -> list[Item]:
    """A uniform random sample of the items (reservoir sampling)."""
    chosen: list[Item] = []
    for number, item in enumerate(items):
        if number < count:
            chosen.append(item)
        elif (place := random.randrange(number + 1)) < count:
            chosen[place] = item
    return chosen


def _shapes(vectors: Vectors) -> dict[str, tuple[int, ...]]:
    return {name: each.shape for name, each in vectors.items()}


def _least_cosine(identity: PassIdentity) -> float:
    return LEAST_COSINE.get(identity.dtype, min(LEAST_COSINE.values()))
