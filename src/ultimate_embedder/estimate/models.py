"""The models of a plan: what describes each, and an encoder without weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ultimate_embedder.batching import BATCH_TOKENS
from ultimate_embedder.config import ModelChoice, RunConfig
from ultimate_embedder.errors import DownloadError, MissingModelError, ModelError
from ultimate_embedder.events import Emit
from ultimate_embedder.history import model_key
from ultimate_embedder.models import DescribedModel, Encoder, describe_model, load_encoder, load_without_weights
from ultimate_embedder.planned import MissingFromPlan, PlannedActivation, PlannedModel
from ultimate_embedder.planning import PassPlan
from ultimate_embedder.types import Capability, ResolvedModel

SHOWN_LENGTHS = (128, 512, 2048, 8192, 32768)


class PlanModels:
    """The models that a plan is for; encoders are made when they are first needed."""

    def __init__(self, config: RunConfig, emit: Emit, scratch: Path) -> None:
        self._config = config
        self._encoders: dict[tuple[str, str], Encoder] = {}
        self.found: list[tuple[ModelChoice, DescribedModel]] = []
        self.missing: list[MissingFromPlan] = []
        """Nothing is known of these."""
        self.left_out: list[str] = []
        """Missing companions that a run does without, as sentences."""
        for number, choice in enumerate(config.models):
            self._describe(number, choice, emit, scratch)

    def _describe(self, number: int, choice: ModelChoice, emit: Emit, scratch: Path) -> None:
        try:
            described = describe_model(choice.name, self._config.hub, emit, scratch)
        except (MissingModelError, DownloadError) as error:
            if number and self._config.allow_missing_companions:
                self.left_out.append(f"continuing without {error.model}: it {error.why}")
            else:
                self.missing.append(MissingFromPlan(model=error.model, why=error.why))
            return
        if number and described.weights == "missing" and self._config.allow_missing_companions:
            self.left_out.append(f"continuing without {described.name}: {described.note}")
        else:
            self.found.append((choice, described))

    @property
    def chosen(self) -> list[tuple[ModelChoice, ResolvedModel]]:
        """As passes are planned from them."""
        return [(choice, described.model) for choice, described in self.found]

    def described(self, plan: PassPlan) -> DescribedModel:
        """The model of a pass."""
        return next(described for _, described in self.found if described.name == plan.name)

    def key(self, plan: PassPlan) -> str:
        """What the history knows the model of a pass by."""
        model = plan.model
        return model_key(model.name, model.spec.hub_id if model.spec else None, model.digest)

    def encoder(self, plan: PassPlan, dtype: str | None = None) -> Encoder:
        """The encoder of a pass, without weights; with them only where its shape cannot be known otherwise."""
        dtype = dtype or plan.identity.dtype
        dtype = "float32" if dtype == "int8" else dtype
        key = (plan.name, dtype)
        if key not in self._encoders:
            self._encoders[key] = self._load(self.described(plan), dtype)
        return self._encoders[key]

    def _load(self, described: DescribedModel, dtype: str) -> Encoder:
        config = self._config
        try:
            return load_without_weights(
                described.model,
                dtype,
                config.max_tokens,
                config.hub.trusted,
                token_cap=config.token_cap,
                stand_in=described.stand_in,
            )
        except ModelError:
            if described.weights != "here":
                raise
        # its shape is in its weights, as that of static embeddings is
        return load_encoder(
            described.model, dtype, "cpu", config.max_tokens, config.hub.trusted, token_cap=config.token_cap
        )


def planned_model(described: DescribedModel, encoder: Encoder, capability: Capability | None) -> PlannedModel:
    """What a plan says of a model."""
    model = described.model
    return PlannedModel(
        model=described.name,
        hub_id=model.spec.hub_id if model.spec else None,
        revision=model.revision,
        weights=described.weights,
        file_bytes=described.weights_bytes,
        download_bytes=described.download_bytes,
        exact=not described.stand_in,
        note=described.note,
        dtype=encoder.dtype,
        dim=encoder.dim,
        max_tokens=encoder.max_tokens,
        layers=encoder.layers,
        weight_bytes=encoder.weight_bytes,
        activations=_activations(encoder, capability),
    )


def _activations(encoder: Encoder, capability: Capability | None) -> list[PlannedActivation]:
    """What one row takes, and what a batch of the usual size takes, at several lengths up to the token limit."""
    if not encoder.tokenizes or capability is None:
        return []
    lengths = [length for length in SHOWN_LENGTHS if length < encoder.max_tokens]
    shapes = [(max(1, BATCH_TOKENS // length), length) for length in _with_limit(lengths, encoder.max_tokens)]
    return [
        PlannedActivation(rows=rows, tokens=length, size_bytes=encoder.peak_bytes(rows, length, capability))
        for rows, length in shapes
    ]


def _with_limit(lengths: Sequence[int], limit: int) -> list[int]:
    return [*lengths, *([limit] if limit <= SHOWN_LENGTHS[-1] else [])]
