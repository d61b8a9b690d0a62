"""Names of spans, attributes and metrics.

`gen_ai.*` are those of the semantic conventions for embeddings (development, 2026); what these do not know is
`ultimate_embedder.*`. Units are UCUM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCOPE = "ultimate_embedder"
PROVIDER = "ultimate_embedder"  # the models run in this process: no other name of the conventions applies
OPERATION = "embeddings"

RUN_SPAN = "ultimate_embedder.run"
COLLECTION_SPAN = "ultimate_embedder.collection"
PASS_SPAN = "ultimate_embedder.pass"
LOAD_SPAN = "ultimate_embedder.load_chunks"
MODEL_SPAN = "ultimate_embedder.load_model"
EXPORT_SPAN = "ultimate_embedder.export"

MITIGATION_EVENT = "ultimate_embedder.mitigation"
WARNING_EVENT = "ultimate_embedder.warning"
STALL_EVENT = "ultimate_embedder.batch_stalled"
RETRY_EVENT = "ultimate_embedder.retry"

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
DIMENSIONS = "gen_ai.embeddings.dimension.count"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
ERROR_TYPE = "error.type"
COLLECTION = "ultimate_embedder.collection.name"
DEVICE = "ultimate_embedder.device.name"
MESSAGE = "ultimate_embedder.message"


@dataclass(frozen=True)
class Instrument:
    """A metric."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    about: str
    boundaries: tuple[float, ...] | None = None


DURATION = Instrument(
    "gen_ai.client.embeddings.duration",
    "histogram",
    "s",
    "Duration of the forward of a batch",
    tuple(0.01 * 2**step for step in range(14)),
)
TOKENS = Instrument(
    "gen_ai.client.embeddings.operation.input_tokens",
    "histogram",
    "{token}",
    "Tokens of a batch, without padding",
    tuple(float(4**step) for step in range(14)),
)
ROWS = Instrument(
    "ultimate_embedder.batch.rows",
    "histogram",
    "{row}",
    "Rows of a batch",
    tuple(float(2**step) for step in range(12)),
)
PADDED = Instrument("ultimate_embedder.padded_tokens", "counter", "{token}", "Tokens computed, with padding")
TEXTS = Instrument("ultimate_embedder.texts", "counter", "{text}", "Texts that have their vector")
CHUNKS = Instrument("ultimate_embedder.chunks", "counter", "{chunk}", "Chunks found, embedded and rejected, by state")
IDLE = Instrument("ultimate_embedder.device.idle_time", "counter", "s", "Time that a device waited for a batch")
MEMORY = Instrument("ultimate_embedder.device.memory.usage", "gauge", "By", "Memory that the allocator has reserved")
LIMIT = Instrument("ultimate_embedder.device.memory.limit", "gauge", "By", "The ceiling of the device")
PEAK = Instrument(
    "ultimate_embedder.device.memory.peak", "gauge", "By", "Most memory reserved since the peak was reset"
)
MITIGATIONS = Instrument("ultimate_embedder.mitigations", "counter", "{mitigation}", "Mitigations, by type")
WARNINGS = Instrument("ultimate_embedder.warnings", "counter", "{warning}", "Warnings")
COLLECTION_DURATION = Instrument("ultimate_embedder.collection.duration", "histogram", "s", "Duration of a collection")

INSTRUMENTS = (
    DURATION,
    TOKENS,
    ROWS,
    PADDED,
    TEXTS,
    CHUNKS,
    IDLE,
    MEMORY,
    LIMIT,
    PEAK,
    MITIGATIONS,
    WARNINGS,
    COLLECTION_DURATION,
)
CHUNK_STATE = "ultimate_embedder.chunk.state"
MITIGATION_TYPE = "ultimate_embedder.mitigation.type"
STATUS = "ultimate_embedder.collection.status"
