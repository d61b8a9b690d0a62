"""A mode is data: how the models of a collection take turns, and which devices each of them gets.

The loop that carries it out (`schedule.py`) and the one that runs a pass (`run.py`) know no modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ultimate_embedder.config import Mode, ModelChoice, RunConfig
from ultimate_embedder.devices import Device
from ultimate_embedder.errors import UsageError
from ultimate_embedder.files import file_sha256, safe_name
from ultimate_embedder.models import check_dim, native_dim
from ultimate_embedder.types import PassIdentity, ResolvedModel
from ultimate_embedder.vectors import Candidate, plan_fusion


@dataclass(frozen=True)
class Turns:
    """How passes take turns on the devices."""

    together: bool
    """All models at the same time, each on a device of its own; else one after the other, each on all devices."""
    lease: Literal["collection", "window"]
    """How long a model keeps its devices."""


TURNS: dict[Mode, Turns] = {
    "single": Turns(together=False, lease="collection"),
    "exclusive": Turns(together=False, lease="collection"),
    "sequential": Turns(together=False, lease="window"),
    "simultaneous": Turns(together=True, lease="collection"),
}


@dataclass(frozen=True)
class PassPlan:
    """One model over one collection: which vectors, and what they weigh. Weights of a collection sum to one."""

    number: int
    model: ResolvedModel
    weight: float
    identity: PassIdentity

    @property
    def name(self) -> str:
        """The model."""
        return self.model.name

    def tokenizer_file(self) -> str | None:
        """A checksum of the model's tokenizer, if it is one file."""
        path = self.model.path / "tokenizer.json"
        return file_sha256(path) if path.is_file() else None


def plan_passes(
    config: RunConfig, models: Sequence[tuple[ModelChoice, ResolvedModel]], device: Device
) -> list[PassPlan]:
    """The passes over a collection, in order; refuses what cannot be fused before anything is computed."""
    names = [safe_name(model.name).lower() for _, model in models]  # as in the names of files
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--models names {name} twice. Drop one, or rename the folder of one.")
    for _, model in models:
        check_dim(model, config.dim)
    if config.backend != "torch" and device.has_ceiling:
        asked = "--precision int8" if config.precision == "int8" else f"--backend {config.backend}"
        raise UsageError(f"{asked} runs on the CPU. Add --devices cpu.")
    _check_fusion(config, models)
    total = sum(choice.weight for choice, _ in models)
    return [
        PassPlan(number, model, choice.weight / total, _identity(config, model, device.dtype(config.precision)))
        for number, (choice, model) in enumerate(models)
    ]


def _check_fusion(config: RunConfig, models: Sequence[tuple[ModelChoice, ResolvedModel]]) -> None:
    dims = [config.dim or native_dim(model) for _, model in models]
    if all(dims):
        pairs = zip(models, dims, strict=True)
        plan_fusion(config.fusion, [candidate(model, choice.weight, dim or 0) for (choice, model), dim in pairs])


def candidate(model: ResolvedModel, weight: float, dim: int) -> Candidate:
    """A model as fusion sees it."""
    return Candidate(model.name, weight, dim, model.spec.matryoshka_dims if model.spec else ())


@dataclass(frozen=True)
class Need:
    """What a model takes on a device: weights, and activations of the smallest and of a comfortable batch."""

    model: str
    weight_bytes: int
    smallest_bytes: int
    comfortable_bytes: int


def assign_devices(needs: Sequence[Need], room_bytes: Sequence[int], *, comfortably: bool = False) -> list[int | None]:
    """A device for each model that is to stay there: the first for the primary, the next with room for each companion.

    None stands for the CPU. Models may share a device: one forward is run at a time, so that they need room for all
    their weights and for the largest of their batches. With the primary a companion shares only in comfort.
    """
    tenants: list[list[Need]] = [[] for _ in room_bytes]
    tenants[0].append(needs[0])
    places: list[int | None] = [0]
    for need in needs[1:]:
        others = sorted(range(1, len(room_bytes)), key=lambda device: len(tenants[device]))
        fitting = (
            device
            for device in [*others, 0]
            if _bytes([*tenants[device], need], comfortably or device == 0) <= room_bytes[device]
        )
        places.append(next(fitting, None))
        if (place := places[-1]) is not None:
            tenants[place].append(need)
    return places


def choose_mode(needs: Sequence[Need], room_bytes: Sequence[int]) -> tuple[Mode, str]:
    """What `auto` means: all models at once where each has room for comfortable batches, else one after the other."""
    if not room_bytes:
        return "exclusive", "on a CPU models at the same time would only share its cores"
    if _bytes(needs[:1], comfortable=True) > room_bytes[0]:
        return "exclusive", f"{needs[0].model} needs the first device to itself, and more"
    for need, place in zip(needs, assign_devices(needs, room_bytes, comfortably=True), strict=True):
        if place is None:
            wanted = _bytes([need], comfortable=True)
            return "exclusive", f"no device has {wanted / 1e6:,.0f} MB for {need.model} beside the models before it"
    return "simultaneous", "all models fit on the devices with room for comfortable batches"


def _bytes(needs: Sequence[Need], comfortable: bool) -> int:
    activations = [need.comfortable_bytes if comfortable else need.smallest_bytes for need in needs]
    return sum(need.weight_bytes for need in needs) + max(activations)


def _identity(config: RunConfig, model: ResolvedModel, dtype: str) -> PassIdentity:
    prompt = model.spec.document_prompt if model.spec else None
    return PassIdentity(
        model=model.name,
        revision=model.revision,
        model_digest=model.digest,
        dtype=dtype,
        max_tokens=config.max_tokens or config.token_cap,
        dim=config.dim,
        document_prompt=prompt.text if prompt else None,
    )
