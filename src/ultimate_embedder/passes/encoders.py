"""Models of a run: resolved at the start, loaded when the first text needs one, kept for the next collection."""

from __future__ import annotations

import time

from ultimate_embedder.config import ModelChoice, RunConfig
from ultimate_embedder.errors import MissingModelError, ModelError
from ultimate_embedder.events import Emit, ModelLoaded, ModelMissing, ModelResolved, Warned
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import Encoder, check_dim, load_encoder, resolve_model, use_backend
from ultimate_embedder.passes.modes import PassPlan
from ultimate_embedder.types import ResolvedModel


def resolve_models(config: RunConfig, emit: Emit) -> list[tuple[ModelChoice, ResolvedModel]]:
    """Find every model before any work is done, so that all that are missing are known at once."""
    resolved: list[tuple[ModelChoice, ResolvedModel]] = []
    missing: list[MissingModelError] = []
    for number, choice in enumerate(config.models):
        try:
            resolved.append((choice, _resolve(choice, config, emit)))
        except MissingModelError as error:
            missing.append(error)
            if number and config.allow_missing_companions:
                missing.pop()
                emit(Warned(message=f"going on without {error.model}: it {error.why}"))
                emit(ModelMissing(model=error.model, why=error.why))
    if len(missing) == 1:
        raise missing[0]
    if missing:
        commands = " ".join(error.model for error in missing)
        reasons = "; ".join(f"{error.model} {error.why}" for error in missing)
        raise ModelError(f"{reasons}. Fetch them with 'ultimate-embedder models pull {commands}', or drop --offline.")
    return resolved


def _resolve(choice: ModelChoice, config: RunConfig, emit: Emit) -> ResolvedModel:
    started = time.perf_counter()
    model = resolve_model(choice.name, config.hub, emit)
    emit(
        ModelResolved(
            model=model.name,
            hub_id=model.spec.hub_id if model.spec else None,
            source=model.source,
            path=str(model.path.absolute()),
            revision=model.revision,
            digest=model.digest,
            size_bytes=model.size_bytes,
            retries=model.retries,
            note=model.note,
            seconds=time.perf_counter() - started,
        )
    )
    return model


class EncoderPool:
    """Loads each encoder once, onto the host. A run whose vectors are all stored loads none."""

    def __init__(self, config: RunConfig, emit: Emit) -> None:
        self.exports = config.exports
        self._config = config
        self._emit = emit
        self._loaded: dict[tuple[str, str, str], Encoder] = {}
        self._lock = OrderedLock("encoder pool", Rank.ENCODER_POOL)

    def get(self, plan: PassPlan) -> Encoder:
        """The encoder of a pass."""
        return self._load(plan, plan.identity.dtype)

    def exact(self, plan: PassPlan) -> Encoder:
        """The same model in fp32, on the CPU: for what the device could not do."""
        return self._load(plan, "float32", "exact")

    def _load(self, plan: PassPlan, dtype: str, role: str = "main") -> Encoder:
        with self._lock:
            key = (plan.name, dtype, role)
            if key not in self._loaded:
                self._loaded[key] = self._load_now(plan, dtype, role)
            return self._loaded[key]

    def _load_now(self, plan: PassPlan, dtype: str, role: str) -> Encoder:
        started = time.perf_counter()
        config = self._config
        own_dtype = "float32" if dtype == "int8" else dtype
        encoder = load_encoder(
            plan.model, own_dtype, "cpu", config.max_tokens, config.hub.trusted, token_cap=config.token_cap
        )
        if config.backend != "torch" and role == "main":
            encoder = use_backend(encoder, plan.model, config.backend, int8=dtype == "int8")
        check_dim(plan.model, config.dim, encoder.dim)
        self._emit(
            ModelLoaded(
                model=plan.model.name,
                dtype=encoder.dtype,
                dim=config.dim or encoder.dim,
                max_tokens=encoder.max_tokens,
                document_prompt=encoder.document_prompt,
                tokenizer=encoder.tokenizer_kind,
                seconds=time.perf_counter() - started,
            )
        )
        return encoder
