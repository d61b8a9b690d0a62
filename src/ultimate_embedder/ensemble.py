"""The models and the fusion that made a collection's vectors, for whoever has more to encode: queries above all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ultimate_embedder.batching import plan_batches
from ultimate_embedder.config import HubAccess
from ultimate_embedder.devices import CpuDevice
from ultimate_embedder.errors import ModelError
from ultimate_embedder.models import Encoder, find_spec, load_encoder, resolve_model
from ultimate_embedder.vectors import Candidate, Fusion, plan_fusion, shorten


@dataclass(frozen=True)
class Ensemble:
    """Encodes a few texts on the host, as the texts of a collection were encoded."""

    encoders: tuple[Encoder, ...]
    fusion: Fusion
    dim: int | None = None

    def encode_query(self, text: str) -> dict[str, np.ndarray]:
        """Vectors of a query, one row each, by name; '' where the collection has one vector without a name."""
        return self._fused([encoder.encode_query(text)[None] for encoder in self.encoders])

    def encode_documents(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Vectors of texts, as if they were chunks."""
        return self._fused([_encode(encoder, texts) for encoder in self.encoders])

    def _fused(self, vectors: list[np.ndarray]) -> dict[str, np.ndarray]:
        cut = [shorten(each, self.dim) if self.dim is not None else each for each in vectors]
        return self.fusion.fuse(cut)


def open_ensemble(summary: dict[str, Any], collection: dict[str, Any], access: HubAccess) -> Ensemble:
    """The ensemble of a collection as the summary of its run describes it; refuses models whose files differ now."""
    encoders = []
    for described in collection["models"]:
        word = described["path"] if described["source"] == "folder" else described["hub_id"] or described["model"]
        model = resolve_model(word, access)
        if model.digest != described["digest"]:
            raise ModelError(f"{model.name} here is not the one that made the vectors (its files differ)")
        options = summary["options"]
        encoders.append(
            load_encoder(
                model, "float32", "cpu", options["max_tokens"], access.trusted, token_cap=options.get("token_cap")
            )
        )
    members = [
        Candidate(each["model"], each["weight"], each["dim"], spec.matryoshka_dims if spec else ())
        for each in collection["passes"]
        for spec in [find_spec(each["model"])]
    ]
    fusion = plan_fusion(summary["options"]["fusion"], members)
    return Ensemble(tuple(encoders), fusion, summary["options"]["dim"])


def _encode(encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    tokenized = encoder.tokenize(texts)
    vectors = np.empty((len(texts), encoder.dim), np.float32)
    for batch in plan_batches(tokenized.lengths, CpuDevice().fixed_budget_tokens or 1):
        vectors[batch.rows] = encoder.forward(encoder.batch(tokenized, batch.rows)).cpu().numpy()
    return vectors
