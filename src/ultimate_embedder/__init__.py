"""Turn collections of pre-chunked documents into vectors and put them into Qdrant."""

from typing import TYPE_CHECKING

from ultimate_embedder._version import __version__
from ultimate_embedder.late import late_names as _late_names

if TYPE_CHECKING:
    from ultimate_embedder.api import compare, embed, evaluate, plan, search, upload
    from ultimate_embedder.contents import OpenedCollection, OpenedOutput, open_output
    from ultimate_embedder.embedder import Embedder
    from ultimate_embedder.errors import UltimateEmbedderError, UsageError
    from ultimate_embedder.find import Hit, Hits
    from ultimate_embedder.planned import Plan
    from ultimate_embedder.summary import RunSummary

__all__ = [
    "Embedder",
    "Hit",
    "Hits",
    "OpenedCollection",
    "OpenedOutput",
    "Plan",
    "RunSummary",
    "UltimateEmbedderError",
    "UsageError",
    "__version__",
    "compare",
    "embed",
    "evaluate",
    "open_output",
    "plan",
    "search",
    "upload",
]

# imported on first use: `import ultimate_embedder` must stay instant and must not load torch
_MODULES = {
    "Embedder": "embedder",
    "Hit": "find",
    "Hits": "find",
    "OpenedCollection": "contents",
    "OpenedOutput": "contents",
    "Plan": "planned",
    "RunSummary": "summary",
    "UltimateEmbedderError": "errors",
    "UsageError": "errors",
    "compare": "api",
    "embed": "api",
    "evaluate": "api",
    "open_output": "contents",
    "plan": "api",
    "search": "api",
    "upload": "api",
}

__getattr__ = _late_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
