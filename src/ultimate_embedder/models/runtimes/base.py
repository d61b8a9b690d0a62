"""What a runtime must do, and what those that run an exported graph have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ultimate_embedder.models.packed import Groups

Features = Mapping[str, Any]


class Runtime(Protocol):
    """Runs the first module of a model, its transformer; pooling and what else follows are the same for all."""

    @property
    def dtype(self) -> str:
        """The number format that it computes in."""
        ...

    @property
    def packs(self) -> bool:
        """Whether it can run rows that are laid end to end; whether a given model can is another question."""
        ...

    @property
    def weights_move(self) -> bool:
        """Whether it computes with the weights of the torch model, wherever they are; else its own stay on the host."""
        ...

    def run(self, model: Any, features: Features, groups: Groups | None) -> dict[str, Any]:
        """The features after the first module: token vectors among them, and the mask that pooling needs."""
        ...


class GraphRuntime(ABC):
    """Runs a transformer that was exported as a graph, on the CPU; may be called from several threads at once."""

    packs = False  # the graph has rows and columns
    weights_move = False

    def __init__(self, dtype: str, input_names: Sequence[str]) -> None:
        self.dtype = dtype
        self._input_names = tuple(input_names)

    @abstractmethod
    def token_vectors(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Token vectors of a padded batch."""

    def run(self, model: Any, features: Features, groups: Groups | None) -> dict[str, Any]:
        """The features with token vectors; the weights of the torch model are not used."""
        import torch

        inputs = {name: features[name].numpy() for name in self._input_names if name in features}
        return {**features, "token_embeddings": torch.from_numpy(self.token_vectors(inputs))}
