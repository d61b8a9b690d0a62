"""`UltimateKaggleEmbedderV4`: the V4 class as a thin layer over the engine."""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ultimate_embedder.api import run_and_report
from ultimate_embedder.chunks import find_collections, load_chunks, text_key
from ultimate_embedder.compat.announce import EXCLUSIVE_DETECTED, EXCLUSIVE_STAGING, announce
from ultimate_embedder.compat.configs import (
    AdvancedPreprocessingConfig,
    EnsembleConfig,
    KaggleExportConfig,
    KaggleGPUConfig,
    RerankingConfig,
)
from ultimate_embedder.compat.missing import name_option
from ultimate_embedder.compat.options import ensemble_options, hardware_options, output_folder, sparse_options
from ultimate_embedder.compat.probes import Probes
from ultimate_embedder.compat.results import (
    earlier_summary,
    exported_vectors,
    is_complete,
    joined,
    require_complete,
    results_of,
)
from ultimate_embedder.compat.telemetry import Telemetry
from ultimate_embedder.config import RunConfig, hub_access, old_environment
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import ChunkRejected, Event
from ultimate_embedder.execution import RerankModel
from ultimate_embedder.export import PointsFile, point_id
from ultimate_embedder.files import write_json
from ultimate_embedder.find import QueryEncoder
from ultimate_embedder.models import find_spec, is_trusted, resolve_reranker
from ultimate_embedder.options import make_config
from ultimate_embedder.output import Output
from ultimate_embedder.planning import PassPlan, as_candidate
from ultimate_embedder.report import CollectionSummary, RunSummary, SummaryBuilder
from ultimate_embedder.session import open_session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.terminal import printable
from ultimate_embedder.texts import TextEncoder, check_texts
from ultimate_embedder.vectors import UNNAMED, Fusion, VectorStore, plan_fusion, settled_identity

logger = logging.getLogger(__name__)
READ_ROWS = 4096


class UltimateKaggleEmbedderV4(Probes):
    """Load chunks, embed them with one or several models, export them for Qdrant, and search them."""

    def __init__(
        self,
        model_name: str = "jina-code-embeddings-1.5b",
        gpu_config: KaggleGPUConfig | None = None,
        export_config: KaggleExportConfig | None = None,
        preprocessing_config: AdvancedPreprocessingConfig | None = None,
        enable_ensemble: bool = False,
        ensemble_config: EnsembleConfig | None = None,
        reranking_config: RerankingConfig | None = None,
        companion_dense_models: Sequence[str] | None = None,
        enable_sparse: bool = False,
        sparse_models: Sequence[str] | None = None,
        matryoshka_dim: int | None = None,
        local_files_only: bool = False,
        force_cpu: bool = False,
        hf_cache_dir: str | Path | None = None,
        refresh_cache: bool = False,
        gpu0_soft_limit_gb: float = 12.0,
        trust_remote_code: Sequence[str] = (),
    ) -> None:
        if sparse_models and not enable_sparse:
            warnings.warn("sparse_models has no effect without enable_sparse=True", stacklevel=2)
        environment = old_environment()
        self.gpu_config = gpu_config or KaggleGPUConfig()
        self.export_config = export_config or KaggleExportConfig()
        self.preprocessing_config = preprocessing_config or AdvancedPreprocessingConfig()
        self.reranking_config = reranking_config or RerankingConfig()
        self.ensemble_config = (ensemble_config or EnsembleConfig()).with_environment(environment)
        self.telemetry = Telemetry()
        self.processing_stats: dict[str, Any] = {}
        self.chunk_texts: list[str] = []
        self.chunks_metadata: list[dict[str, Any]] = []
        self.embeddings: np.ndarray | None = None
        self.output_folder = output_folder(self.export_config, self.gpu_config)
        self._trusted = list(trust_remote_code)
        self._options: dict[str, Any] = {
            **ensemble_options(model_name, enable_ensemble, self.ensemble_config, companion_dense_models or ()),
            **hardware_options(self.gpu_config, environment, force_cpu),
            **sparse_options(enable_sparse, sparse_models or ()),
            "dim": matryoshka_dim,
            "gpu0_ceiling": int(gpu0_soft_limit_gb * 1e9),
            "cache_dir": hf_cache_dir,
            "offline": local_files_only,
            "refresh_cache": refresh_cache or environment.refresh_cache,
            "trust_remote_code": self._trusted,
        }
        self._chunks_dir: Path | None = None
        self._summary: RunSummary | None = None
        self._stage_models()

    def _stage_models(self) -> None:
        """Load every model on the CPU; devices are leased later."""
        config = self._config(Path.cwd())
        if config.mode == "exclusive" and len(config.models) > 1:
            announce(logger, EXCLUSIVE_STAGING)
        with name_option("EnsembleConfig(allow_missing_companions=True)", config):
            self._session = open_session(config, self.telemetry, StopSwitch())
        for missing in self._missing_companions():
            warnings.warn(printable(f"continuing without {missing.model}: it {missing.why}"), stacklevel=3)
        passes = self._session.passes_for()
        self._plans: list[PassPlan] = [plan for plan in passes if plan.kind == "dense"]
        self.models: dict[str, Any] = {plan.name: self._session.load(plan).model for plan in self._plans}
        sparse = [plan for plan in passes if plan.kind == "sparse" and not plan.counts_words]
        self.sparse_models: dict[str, Any] = {plan.name: self._session.load(plan).model for plan in sparse}
        # fail now if it is missing or not trusted, not after hours of embedding
        self._rerankers: dict[str, RerankModel] = {}
        if self.reranking_config.enable_reranking:
            self._find_reranker()

    @property
    def _output(self) -> Output:
        return Output(self.output_folder)

    @property
    def primary_model(self) -> Any:
        """The first model, a torch module."""
        return self.models[self._plans[0].name]

    @property
    def companion_models(self) -> dict[str, Any]:
        """The other models, by name."""
        return {plan.name: self.models[plan.name] for plan in self._plans[1:]}

    @property
    def companion_device_map(self) -> dict[str, str]:
        """The devices of the companions in the last run; cpu before the first run."""
        return {plan.name: self.telemetry.companion_device_map.get(plan.name, "cpu") for plan in self._plans[1:]}

    @property
    def embeddings_by_model(self) -> dict[str, np.ndarray]:
        """The vectors of each model, in the order of the chunks, read from the store; empty before a run."""
        if self.embeddings is None:
            return {}
        keys = np.array([text_key(text) for text in self.chunk_texts], np.uint64).reshape(-1, 2)
        found: dict[str, np.ndarray] = {}
        for plan in self._plans:
            parts = []
            for name, rows in self._rows_by_collection().items():
                folder = self._output.collection(name).store
                store = VectorStore(folder, settled_identity(folder, plan.identity), read_only=True)
                parts.append(store.read(keys[rows]))
            if parts:
                found[plan.name] = np.concatenate(parts)
        return found

    def load_chunks_from_processing(self, chunks_dir: str | Path = "/kaggle/input") -> dict[str, Any]:
        """Read all chunk files below a folder and return counts."""
        root = Path(chunks_dir)
        if not root.exists():
            raise UsageError(f"{root} does not exist. Give the folder that holds your chunk files.")
        found = find_collections(root, (), skip=self.output_folder)
        errors: list[dict[str, Any]] = []
        self.chunk_texts, self.chunks_metadata, self.embeddings = [], [], None
        counts: dict[str, int] = {}
        with TemporaryDirectory(prefix="ultimate-embedder-") as scratch:
            for collection in found.collections:
                loaded = load_chunks(collection, Path(scratch) / "chunks.arrow", partial(_note_rejected, errors))
                counts[collection.name] = len(loaded.table)
                for block in loaded.table.blocks():
                    self.chunk_texts += block.texts
                    for chunk_id, file, record in zip(block.ids, block.files, block.records, strict=True):
                        metadata = json.loads(record).get("metadata") or {}
                        place = {"chunk_id": chunk_id, "collection_name": collection.name, "file": file}
                        self.chunks_metadata.append({**metadata, **place})
        self._chunks_dir = root
        return {
            "collections_loaded": len(counts),
            "total_chunks_loaded": len(self.chunk_texts),
            "chunks_by_collection": counts,
            "loading_errors": errors,
            "chunks_dir": str(root),
        }

    def generate_embeddings_kaggle_optimized(self) -> dict[str, Any]:
        """Embed the loaded chunks. Resumes an interrupted run; after a complete run everything is recomputed."""
        return self._generate()

    def run_exclusive_ensemble(self) -> dict[str, Any]:
        """The same in exclusive mode, whatever mode was configured: each model in turn leases all devices."""
        return self._generate(**({"mode": "exclusive", "parallelism": "replicas"} if len(self._plans) > 1 else {}))

    def _generate(self, **options: Any) -> dict[str, Any]:
        fresh = is_complete(self.output_folder)
        config = self._config(self._loaded_from(), exports=("npy", "parquet"), fresh=fresh, **options)
        if config.mode == "exclusive" and len(config.models) > 1:
            announce(logger, EXCLUSIVE_DETECTED)
        marks, started = self.telemetry.marks(), time.perf_counter()
        builder = SummaryBuilder(self.telemetry.of_collection)
        self._summary = run_and_report(
            config, quiet=False, watch=[self.telemetry], session=self._session, builder=builder
        )
        done = require_complete(self._summary)
        self._keep_only_embedded(done)
        self.embeddings = joined(
            [exported_vectors(self._output.collection(each.collection), self._plans[0].name) for each in done]
        )
        self.processing_stats = {
            **results_of(self._summary, done, self.embeddings, time.perf_counter() - started),
            **self.telemetry.since(marks),
        }
        write_json(self._stats_path(), self.processing_stats)
        return dict(self.processing_stats)

    def generate_ensemble_embeddings(self, texts: Sequence[str]) -> np.ndarray:
        """Fused vectors of some texts, computed like those of a collection, on leased devices."""
        try:
            vectors = TextEncoder(self._session).encode(check_texts(texts), self.telemetry, StopSwitch())
        finally:
            self._session.end_run()
        return vectors[UNNAMED if UNNAMED in vectors else self._plans[0].name]

    def export_for_local_qdrant(self) -> dict[str, str]:
        """Write the configured exports and return their paths. Stored vectors are reused.

        Summary and event log stay those of the run that made the vectors; the exports are added to them.
        """
        sparse = self.export_config.export_sparse_jsonl and bool(self._options.get("sparse"))
        wanted = {"npy": self.export_config.export_numpy, "jsonl": self.export_config.export_jsonl or sparse}
        kinds = [kind for kind, asked in wanted.items() if asked] + ["parquet", "qdrant"]
        config = self._config(self._loaded_from(), exports=kinds)
        telemetry = Telemetry()
        self._summary = run_and_report(
            config,
            quiet=True,
            watch=[telemetry],
            session=self._session,
            builder=SummaryBuilder(telemetry.of_collection),
            adds_to=self._summary or earlier_summary(self.output_folder),
        )
        if telemetry.batch_progress:  # it was a run of its own
            self.telemetry.add(telemetry)
        done = require_complete(self._summary)
        paths = {"stats": str(self._stats_path())}
        for collection in done:
            prefix = f"{collection.collection}/" if len(done) > 1 else ""
            found = {export.kind: export.path for export in collection.exports if export.kind in kinds}
            if sparse:  # a line has all vectors of a point
                found["sparse_jsonl"] = found["jsonl"]
            paths |= {f"{prefix}{kind}": path for kind, path in found.items()}
        return paths

    def get_target_collection_name(self) -> str:
        """The name of the Qdrant collection that an upload creates."""
        if self._summary is None or not self._summary.collections:
            raise UsageError("call generate_embeddings_kaggle_optimized() first.")
        return str(self._summary.collections[0].target_qdrant_collection)

    def search_with_reranking(self, query: str, top_k: int = 20, initial_candidates: int = 100) -> list[dict[str, Any]]:
        """The best chunks for a query: candidates by similarity, then reranked if reranking is enabled."""
        if self.embeddings is None:
            raise UsageError("call generate_embeddings_kaggle_optimized() first.")
        vectors = QueryEncoder(
            tuple(self._session.load_fp32(plan) for plan in self._plans), self._fusion(), self._options["dim"]
        ).encode_query(query)
        similarity = self._fusion().similarity(vectors, self._document_vectors())
        best = np.argsort(-similarity, kind="stable")[:initial_candidates]
        hits = [
            {
                "index": int(row),
                "score": float(similarity[row]),
                "text": self.chunk_texts[row],
                "metadata": self.chunks_metadata[row],
            }
            for row in best
        ]
        if self.reranking_config.enable_reranking and hits:
            found = self._find_reranker().score(query, [hit["text"] for hit in hits], self.telemetry)
            for hit, score in zip(hits, found.scores, strict=True):
                hit["rerank_score"] = float(score)
            hits.sort(key=lambda hit: -hit["rerank_score"])
        return hits[:top_k]

    def _find_reranker(self) -> RerankModel:
        """Find the reranker's files; it is loaded when it is first used."""
        name = self.reranking_config.model_name
        if name in self._rerankers:
            return self._rerankers[name]
        spec = find_spec(name)
        trusted = [*self._trusted, *([name] if self.reranking_config.trust_remote_code else [])]
        if spec and spec.remote_code and not is_trusted(spec, None, trusted):
            raise UsageError(
                f"{spec.key} runs code from its own repository. If you have read it and trust it, allow it with "
                "RerankingConfig(trust_remote_code=True); else choose another, such as bge-reranker-v2-m3."
            )
        options, session = self._options, self._session
        access = hub_access(cache_dir=options["cache_dir"], offline=options["offline"], trusted=trusted)
        model = resolve_reranker(name, access, self.telemetry)
        self._rerankers[name] = RerankModel(model, trusted, session.devices, session.leases, options["precision"])
        return self._rerankers[name]

    def _document_vectors(self) -> Mapping[str, np.ndarray]:
        if any(spec.name == UNNAMED for spec in self._fusion().vectors):
            return {UNNAMED: np.asarray(self.embeddings)}
        return self.embeddings_by_model

    def _fusion(self) -> Fusion:
        passes = self._summary.collections[0].passes if self._summary else []
        dims = {each.model: each.dim for each in passes}
        return plan_fusion(
            self._options["fusion"], [as_candidate(plan.model, plan.weight, dims[plan.name]) for plan in self._plans]
        )

    def _config(self, chunks: Path, **more: Any) -> RunConfig:
        return make_config(chunks, self.output_folder, **{**self._options, **more})

    def _loaded_from(self) -> Path:
        if self._chunks_dir is None:
            raise UsageError("call load_chunks_from_processing() first.")
        return self._chunks_dir

    def _rows_by_collection(self) -> dict[str, list[int]]:
        rows: dict[str, list[int]] = {}
        for row, metadata in enumerate(self.chunks_metadata):
            rows.setdefault(metadata["collection_name"], []).append(row)
        return rows

    def _keep_only_embedded(self, done: list[CollectionSummary]) -> None:
        """Drop chunks that have no vector from some model; the summary lists them as rejected."""
        embedded: set[str] = set()
        for collection in done:
            for ids in PointsFile.open(self._output.collection(collection.collection).points_file).ids(READ_ROWS):
                embedded.update(ids)
        kept = [
            row
            for row, metadata in enumerate(self.chunks_metadata)
            if point_id(metadata["collection_name"], metadata["chunk_id"]) in embedded
        ]
        self.chunk_texts = [self.chunk_texts[row] for row in kept]
        self.chunks_metadata = [self.chunks_metadata[row] for row in kept]

    def _stats_path(self) -> Path:
        return self._output.stats_path(self.export_config.output_prefix)


def _note_rejected(errors: list[dict[str, Any]], event: Event) -> None:
    if isinstance(event, ChunkRejected):
        where = event.rejected
        errors.append({"file": where.file, "position": where.position, "reason": where.reason})
