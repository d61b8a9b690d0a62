"""OpenVINO."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.machine import usable_cores
from ultimate_embedder.models.runtimes.base import GraphRuntime

MOST_TOKENS = 512  # of a forward: half the memory of a whole batch


class OpenVinoRuntime(GraphRuntime):
    """OpenVINO with one stream per worker."""

    def __init__(self, path: Path, dtype: str, group: int = 0) -> None:
        """`group`: how many activations share a scale in products with int8 weights; 0 if they stay in fp32."""
        super().__init__(dtype)
        self._path, self._group = path, group
        self.opened  # noqa: B018 - a graph that cannot be opened is an error now

    def _open(self) -> Any:
        cores = usable_cores()
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",  # else it computes in bf16 on CPUs that support it
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(self._group),  # else it quantises activations by a size of its own
            "INFERENCE_NUM_THREADS": cores,
            "NUM_STREAMS": cores,
        }
        openvino = import_openvino()
        # the first look at a tensor's data, by one thread: two at once wait for each other for ever (seen with 2026.4)
        openvino.Tensor(np.zeros(1, np.float32)).data  # noqa: B018
        with _own_signal_stack():
            return openvino.Core().compile_model(str(self._path), "CPU", settings)

    @functools.cached_property
    def input_names(self) -> Sequence[str]:
        """The inputs of the graph."""
        return tuple(each.get_any_name() for each in self.opened.inputs)

    def setting(self, name: str) -> str:
        """What it computes with, by OpenVINO's name of the setting."""
        return str(self.opened.get_property(name))

    def token_vectors(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Token vectors of a padded batch, in parts: each stream keeps the memory of its largest forward."""
        rows, tokens = next(iter(inputs.values())).shape
        step = max(1, MOST_TOKENS // tokens)
        request = self.opened.create_infer_request()
        parts = [
            self._part(request, {name: each[start : start + step] for name, each in inputs.items()})
            for start in range(0, rows, step)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @staticmethod
    def _part(request: Any, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return np.array(next(iter(request.infer(inputs).values())))  # its own memory is used again


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def _own_signal_stack() -> Iterator[None]:
    """Leave this thread the stack on which it handles signals.

    OpenVINO gives it another and frees that with the graph, in whichever thread: then the next Ctrl-C ends the process.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    library, before = ctypes.CDLL(None), _SignalStack()
    known = library.sigaltstack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if known:
            library.sigaltstack(ctypes.byref(before), None)


def import_openvino() -> Any:
    """Import it without its telemetry package, which makes a DNS request at every start."""
    if "openvino" not in sys.modules and "openvino_telemetry" not in sys.modules:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment] # as if it were not installed
        try:
            return importlib.import_module("openvino")
        finally:
            del sys.modules["openvino_telemetry"]
    return importlib.import_module("openvino")
