"""A mode is data: it turns models and devices into passes. The loop that runs a pass knows no modes."""

from __future__ import annotations

from dataclasses import dataclass

from ultimate_embedder.config import ModelChoice, RunConfig
from ultimate_embedder.devices import Device
from ultimate_embedder.errors import UsageError
from ultimate_embedder.models import check_dim
from ultimate_embedder.types import PassIdentity, ResolvedModel


@dataclass(frozen=True)
class PassPlan:
    """One model over one collection: which vectors, and where they are computed."""

    number: int
    model: ResolvedModel
    weight: float
    devices: tuple[Device, ...]
    identity: PassIdentity


def require_built(config: RunConfig) -> None:
    """Refuse what cannot be done yet, before anything is looked for or fetched."""
    if config.mode not in ("auto", "single"):
        raise UsageError(f"--mode {config.mode}: not built yet. Use --mode single with one model.")


def plan_passes(
    config: RunConfig, models: list[tuple[ModelChoice, ResolvedModel]], devices: list[Device]
) -> list[PassPlan]:
    """The passes that the mode asks for, in order."""
    if len(models) > 1:
        names = ", ".join(choice.name for choice, _ in models)
        raise UsageError(f"--models {names}: several models at once are not built yet. Give one.")
    for _, model in models:
        check_dim(model, config.dim)
    return [
        PassPlan(
            number=number,
            model=model,
            weight=choice.weight,
            devices=tuple(devices),
            identity=_identity(config, model, devices[0].dtype(config.precision)),
        )
        for number, (choice, model) in enumerate(models)
    ]


def _identity(config: RunConfig, model: ResolvedModel, dtype: str) -> PassIdentity:
    prompt = model.spec.document_prompt if model.spec else None
    return PassIdentity(
        model=model.name,
        revision=model.revision,
        model_digest=model.digest,
        dtype=dtype,
        max_tokens=config.max_tokens,
        dim=config.dim,
        document_prompt=prompt.text if prompt else None,
    )
