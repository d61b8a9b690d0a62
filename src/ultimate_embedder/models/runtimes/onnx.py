"""ONNX Runtime."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.models.runtimes.base import GraphRuntime


class OnnxRuntime(GraphRuntime):
    """ONNX Runtime with one thread per call, as several workers call it at the same time."""

    def __init__(self, path: Path, dtype: str, group: int = 0) -> None:
        """`group` means nothing here: in int8 there is one scale for a batch."""
        super().__init__(dtype)
        self._path = path
        self.opened  # noqa: B018 - a graph that cannot be opened is an error now

    def _open(self) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(str(self._path), options, providers=["CPUExecutionProvider"])

    @functools.cached_property
    def input_names(self) -> Sequence[str]:
        """The inputs of the graph."""
        return tuple(each.name for each in self.opened.get_inputs())

    def token_vectors(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Token vectors of a padded batch."""
        return np.asarray(self.opened.run(None, inputs)[0])
