"""Import sentence-transformers without slow dependencies that encoding never uses.

Importing scikit-learn and scipy.optimize takes more than a second; one is used for a distance of sparse vectors, the
other for the loss of object detectors. Here they are replaced by stubs that import the real function when called.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

DEFERRED: dict[str, tuple[str, ...]] = {
    "sklearn": (),  # slow to import by itself
    "sklearn.metrics": ("pairwise_distances", "roc_curve"),
    "scipy.optimize": ("linear_sum_assignment",),
}


def import_quickly(name: str) -> None:
    """Import a module with stubs for those above; without stubs if that fails."""
    if name in sys.modules:
        return
    with _no_collecting(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")  # tqdm, in a notebook without widgets: not ours
        with contextlib.suppress(ImportError), _with_stubs():
            importlib.import_module(name)
            return
        importlib.import_module(name)


@contextlib.contextmanager
def _no_collecting() -> Iterator[None]:
    """Disable garbage collection: imports create no garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _with_stubs() -> Iterator[None]:
    stubs = _make_stubs()
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name, module in stubs.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _make_stubs() -> dict[str, ModuleType]:
    """A stub for each module that is installed and not imported yet."""
    found: dict[str, ModuleType] = {}
    for name, functions in DEFERRED.items():
        package = name.partition(".")[0]
        spec = importlib.util.find_spec(package)
        if spec is None or name in sys.modules:
            continue
        if name == package:
            found[name] = importlib.util.module_from_spec(spec)  # not executed, but its other modules can be imported
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
