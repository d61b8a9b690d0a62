"""Import sentence-transformers without what encoding never calls.

More than a second of every start went into scikit-learn and scipy.optimize: the one is wanted for a distance of sparse
vectors, the other for the loss of object detectors. Here their functions are names, until somebody calls them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

DEFERRED: dict[str, tuple[str, ...]] = {
    "sklearn": (),  # heavy from its own first line on
    "sklearn.metrics": ("pairwise_distances", "roc_curve"),
    "scipy.optimize": ("linear_sum_assignment",),
}


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """For the duration, let those modules be imported as stand-ins, and collect no garbage: imports make none."""
    stand_ins = _stand_ins()
    sys.modules.update(stand_ins)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _stand_ins() -> dict[str, ModuleType]:
    """One for each module that is installed and not imported yet."""
    found: dict[str, ModuleType] = {}
    for name, functions in DEFERRED.items():
        package = name.partition(".")[0]
        spec = importlib.util.find_spec(package)
        if spec is None or name in sys.modules:
            continue
        if name == package:
            found[name] = importlib.util.module_from_spec(spec)  # made, not run: its other modules can be imported
            continue
        found[name] = ModuleType(name)
        found[name].__spec__ = ModuleSpec(name, None)
        for function in functions:
            setattr(found[name], function, _import_when_called(name, function))
    return found


def _import_when_called(module: str, function: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*arguments, **options)

    call.__name__ = function
    return call
