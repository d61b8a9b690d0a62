"""Predictions of memory that tests share: a model like one that was loaded before is not run on fake tensors again."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

from ultimate_embedder.models.peak import PeakPredictor

_first_prediction = PeakPredictor.peak_bytes


@contextlib.contextmanager
def shared_predictions() -> Iterator[None]:
    """Within the block, models of the same code, configuration and weights (not their values) have one prediction."""
    known: dict[Any, dict[Any, int]] = {}
    shared: weakref.WeakSet[PeakPredictor] = weakref.WeakSet()
    sharing = threading.Lock()  # several workers may ask at once

    def peak_bytes(self: PeakPredictor, *point: Any, **options: Any) -> int:
        with sharing:
            if self not in shared:
                self._known = known.setdefault(_kind(self._model), self._known)
                shared.add(self)
        return _first_prediction(self, *point, **options)

    with mock.patch.object(PeakPredictor, "peak_bytes", peak_bytes):
        yield


def _kind(model: Any) -> tuple[Any, ...]:
    """All that the memory of a forward depends on."""
    weights = [*model.named_parameters(), *model.named_buffers()]
    shapes = tuple((name, tuple(weight.shape), weight.stride(), weight.dtype) for name, weight in weights)
    configurations = {str(module.config.to_diff_dict()) for module in model.modules() if hasattr(module, "config")}
    attention = {module.config._attn_implementation for module in model.modules() if hasattr(module, "config")}
    return repr(model), shapes, *sorted(configurations), *sorted(map(str, attention))
