"""The runtime protocol, and the base class of runtimes for exported graphs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models.attention import Groups

Features = Mapping[str, Any]
TOKEN_TYPES = "token_type_ids"


class Runtime(Protocol):
    """Runs the first module of a model, the transformer; the other modules are the same for all runtimes."""

    @property
    def dtype(self) -> str:
        """The number format that it computes in."""
        ...

    @property
    def packs(self) -> bool:
        """Whether the runtime can run packed rows; the model must support it too."""
        ...

    @property
    def weights_move(self) -> bool:
        """Whether it uses the weights of the torch model, on any device; else it has its own weights on the host."""
        ...

    def run(self, model: Any, features: Features, groups: Groups | None) -> dict[str, Any]:
        """The features after the first module, including token vectors and the attention mask."""
        ...


class GraphRuntime(ABC):
    """Runs a transformer that was exported as a graph, on the CPU; may be called from several threads at once."""

    packs = False  # the graph needs padded rows
    weights_move = False

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._opened: Any = None
        self._opening = OrderedLock("graph", Rank.GRAPH)

    @abstractmethod
    def _open(self) -> Any:
        """Load the graph."""

    @property
    def opened(self) -> Any:
        """The graph in memory; loaded unless it is."""
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def release(self) -> None:
        """Free the memory of the graph until it is used again; only while nobody computes with it."""
        with self._opening:
            self._opened = None

    @property
    @abstractmethod
    def input_names(self) -> Sequence[str]:
        """The inputs of the graph."""

    @abstractmethod
    def token_vectors(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Token vectors of a padded batch."""

    def run(self, model: Any, features: Features, groups: Groups | None) -> dict[str, Any]:
        """The features with token vectors, computed without the weights of the torch model."""
        import torch

        inputs = {name: features[name].numpy() for name in self.input_names if name in features}
        if TOKEN_TYPES in self.input_names and TOKEN_TYPES not in inputs:  # a fused model's tokenizer leaves them out
            inputs[TOKEN_TYPES] = np.zeros_like(inputs["input_ids"])
        return {**features, "token_embeddings": torch.from_numpy(self.token_vectors(inputs))}
