"""Results of a run, under the keys that existing notebooks use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.errors import UltimateEmbedderError, UsageError
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.report import CollectionSummary, RunSummary
from ultimate_embedder.summary import PassSummary

OLD_MODES = {"simultaneous": "parallel", "single": "disabled"}
OLD_DTYPES = {"float16": "fp16", "float32": "fp32", "bfloat16": "bf16"}
COMPLETE = ("completed", "skipped_no_chunks")


def is_complete(output: Path) -> bool:
    """Whether the last run completed, so that the next one recomputes instead of resuming."""
    summary = earlier_summary(output)  # one that cannot be read does not tell what the run did
    if summary is None or summary.error is not None:
        return False
    return all(collection.status in COMPLETE for collection in summary.collections)


def earlier_summary(output: Path) -> RunSummary | None:
    """The summary of the last run there, if there is one that can be read."""
    try:
        return Output(output).read_summary()
    except UsageError:
        return None


def require_complete(summary: RunSummary) -> list[CollectionSummary]:
    """The completed collections; raises if one was not completed."""
    for collection in summary.collections:
        if collection.status not in COMPLETE:
            raise UltimateEmbedderError(f"{collection.collection} {collection.status}: {collection.error}")
    done = [collection for collection in summary.collections if collection.status == "completed"]
    if not done:
        raise UltimateEmbedderError(f"no chunks below {summary.chunks}.")
    return done


def exported_vectors(collection: CollectionOutput, primary: str) -> np.ndarray:
    """The exported vectors of a collection, memory-mapped; of named vectors, those of the primary model."""
    fused = collection.embeddings
    return np.asarray(np.load(fused if fused.exists() else collection.embeddings_of(primary), mmap_mode="r"))


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """Concatenate the parts; a single part is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def results_of(
    summary: RunSummary, done: list[CollectionSummary], embeddings: np.ndarray, seconds: float
) -> dict[str, Any]:
    """The results of a run, as notebooks read them."""
    passes = [each for collection in done for each in collection.dense_passes]
    largest = max(passes, key=lambda each: each.batch_rows)
    return {
        "total_embeddings_generated": len(embeddings),
        "embedding_dimension": int(embeddings.shape[1]),
        "processing_time_seconds": seconds,
        "chunks_per_second": len(embeddings) / seconds,
        "optimal_batch_size": largest.batch_rows,
        "optimal_batch_sizes": {each.model: each.batch_rows for each in passes},
        "gpu_count": len(_gpus_that_worked(passes)),
        "precision": OLD_DTYPES.get(passes[0].dtype, passes[0].dtype),
        "model_used": passes[0].model,
        "models_executed": list(dict.fromkeys(each.model for collection in done for each in collection.passes)),
        "ensemble_mode": OLD_MODES.get(summary.ensemble_mode, summary.ensemble_mode),
        "embedding_memory_mb": embeddings.nbytes / 1e6,
        "target_collections": {each.collection: each.target_qdrant_collection for each in done},
    }


def _gpus_that_worked(passes: list[PassSummary]) -> set[str]:
    """The cards that encoded something, not those that were there; a batch that is split has the name of a group."""
    names = {name for each in passes for group in each.tokens_by_device for name in group.split("+")}
    return names - {"cpu"}
