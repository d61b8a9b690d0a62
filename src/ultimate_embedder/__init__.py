"""Turn collections of pre-chunked documents into vectors and put them into Qdrant."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder._version import __version__

if TYPE_CHECKING:
    from ultimate_embedder.api import compare, embed, upload
    from ultimate_embedder.contents import OpenedCollection, OpenedOutput, open_output
    from ultimate_embedder.embedder import Embedder
    from ultimate_embedder.errors import UltimateEmbedderError, UsageError
    from ultimate_embedder.summary import RunSummary

__all__ = [
    "Embedder",
    "OpenedCollection",
    "OpenedOutput",
    "RunSummary",
    "UltimateEmbedderError",
    "UsageError",
    "__version__",
    "compare",
    "embed",
    "open_output",
    "upload",
]

# imported on first use: `import ultimate_embedder` must stay instant and must not load torch
_MODULES = {
    "Embedder": "embedder",
    "OpenedCollection": "contents",
    "OpenedOutput": "contents",
    "RunSummary": "summary",
    "UltimateEmbedderError": "errors",
    "UsageError": "errors",
    "compare": "api",
    "embed": "api",
    "open_output": "contents",
    "upload": "api",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"ultimate_embedder.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
