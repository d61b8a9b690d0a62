"""What the specification names in brackets, as questions to an embedder: memory, models, caches, mitigations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.compat.telemetry import Telemetry, device_id, gigabytes
from ultimate_embedder.config import RunConfig
from ultimate_embedder.events import ModelMissing
from ultimate_embedder.models import model_options, require_trust, resolve_model
from ultimate_embedder.planning import PassPlan
from ultimate_embedder.session import Session, resolved_event
from ultimate_embedder.types import ResolvedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

GB = 1e9
CHECKPOINTING = "inference keeps no activations for a backward pass, so there is nothing that checkpointing would save"


class Probes:
    """Answers from what the embedder holds open; nothing here changes what a run does."""

    telemetry: Telemetry
    models: dict[str, Any]
    _session: Session
    _plans: list[PassPlan]

    @property
    def cache_events(self) -> list[dict[str, Any]]:
        """Where each model came from: the cache, a download, or a refresh."""
        return self.telemetry.cache_events

    def _collect_gpu_snapshots(self) -> dict[int | str, dict[str, Any]]:
        """Memory of each GPU now, and whether it is low: less is free than its ceiling leaves free (12 GB on GPU 0)."""
        snapshots = {}
        for device in self._session.devices:
            if not device.has_ceiling:
                continue
            now = device.snapshot()
            threshold = now.total_bytes - now.ceiling_bytes
            snapshots[device_id(device.name)] = {
                "device": device.name,
                **gigabytes(now),
                "ceiling_gb": now.ceiling_bytes / GB,
                "usable_gb": now.usable_bytes / GB,
                "low_memory_threshold_gb": threshold / GB,
                "low_memory": now.free_bytes < threshold,
            }
        return snapshots

    def _record_mitigation(self, mitigation_type: str, **details: Any) -> None:
        """Add an entry of your own to `telemetry.mitigation_events`."""
        self.telemetry.record(mitigation_type, **details)

    def _ensure_model_snapshot(self, model_name: str | None = None) -> Path:
        """The folder that holds a model's files: of the cache, if they are there; else they are fetched first."""
        return self._resolved(model_name).path

    def _build_sentence_transformer_kwargs(self, model_name: str | None = None) -> dict[str, Any]:
        """The arguments with which `SentenceTransformer` loads a model as it is loaded here: from disk only."""
        import torch

        model = self._resolved(model_name)
        dtype = next((plan.identity.dtype for plan in self._plans if plan.name == model.name), "float32")
        is_trusted = require_trust(model.spec, model.path, self._run_config.hub.trusted)
        return {
            "model_name_or_path": str(model.path),
            "device": "cpu",
            "local_files_only": True,
            "trust_remote_code": is_trusted,
            "model_kwargs": model_options(
                getattr(torch, "float32" if dtype == "int8" else dtype), is_trusted, model.spec
            ),
        }

    def _initialize_companion_models(self) -> Mapping[str, Any]:
        """The companions, on the host, by name; one that was allowed to be missing is in the telemetry instead."""
        return {plan.name: self.models[plan.name] for plan in self._plans[1:]}

    def _maybe_enable_transformer_checkpointing(self) -> bool:
        """Whether gradient checkpointing was switched on: never; the reason is recorded as a mitigation."""
        self.telemetry.record("gradient_checkpointing_not_enabled", enabled=False, reason=CHECKPOINTING)
        return False

    def _missing_companions(self) -> list[ModelMissing]:
        return [event for event in self._session.resolved if isinstance(event, ModelMissing)]

    @property
    def _run_config(self) -> RunConfig:
        return self._session.config

    def _resolved(self, name: str | None) -> ResolvedModel:
        """A model of this embedder, or any other; the primary if none is named."""
        for plan in self._plans:
            spec = plan.model.spec
            if name in (None, plan.name, spec.hub_id if spec else None):
                return plan.model
        model = resolve_model(str(name), self._run_config.hub, self.telemetry)
        self.telemetry(resolved_event(model, seconds=0.0))
        return model
