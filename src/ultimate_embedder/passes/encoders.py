"""Models of a run: resolved at the start, loaded when the first text needs one, kept for the next collection."""

from __future__ import annotations

import time
from collections.abc import Callable

from ultimate_embedder.config import RunConfig
from ultimate_embedder.events import Emit, ModelLoaded, ModelResolved
from ultimate_embedder.models import Encoder, load_encoder, resolve_model
from ultimate_embedder.passes.modes import PassPlan
from ultimate_embedder.types import ResolvedModel


def resolve_models(config: RunConfig, emit: Emit) -> list[ResolvedModel]:
    """Find every model before any work is done, so that a missing one is known at once."""
    resolved = []
    for choice in config.models:
        started = time.perf_counter()
        model = resolve_model(choice.name)
        emit(
            ModelResolved(
                model=model.name,
                hub_id=model.spec.hub_id if model.spec else None,
                source=model.source,
                path=str(model.path),
                revision=model.revision,
                digest=model.digest,
                size_bytes=model.size_bytes,
                seconds=time.perf_counter() - started,
            )
        )
        resolved.append(model)
    return resolved


class EncoderPool:
    """Loads each encoder once. A run whose vectors are all stored loads none."""

    def __init__(self, config: RunConfig, emit: Emit) -> None:
        self._config = config
        self._emit = emit
        self._loaded: dict[int, Encoder] = {}

    def get(self, plan: PassPlan) -> Callable[[], Encoder]:
        """A function that gives the pass's encoder, loading it the first time."""
        return lambda: self._loaded.get(plan.number) or self._load(plan)

    def _load(self, plan: PassPlan) -> Encoder:
        started = time.perf_counter()
        encoder = load_encoder(
            plan.model,
            dtype=plan.identity.dtype,
            device=plan.device.name,
            max_tokens=self._config.max_tokens,
            dim=self._config.dim,
        )
        self._loaded[plan.number] = encoder
        self._emit(
            ModelLoaded(
                model=plan.model.name,
                device=plan.device.name,
                dtype=encoder.dtype,
                dim=encoder.dim,
                max_tokens=encoder.max_tokens,
                document_prompt=encoder.document_prompt,
                tokenizer=encoder.tokenizer_kind,
                seconds=time.perf_counter() - started,
            )
        )
        return encoder
