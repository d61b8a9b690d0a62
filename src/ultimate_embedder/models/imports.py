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


def import_quickly(name: str) -> None:
    """Import a module with stand-ins for those above; without them where it wants more of them than names."""
    if name in sys.modules:
        return
    with _no_collecting():
        with contextlib.suppress(ImportError), _standing_in():
            importlib.import_module(name)
            return
        importlib.import_module(name)


@contextlib.contextmanager
def _no_collecting() -> Iterator[None]:
    """Look for no garbage: imports make none."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _standing_in() -> Iterator[None]:
    stand_ins = _stand_ins()
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
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
