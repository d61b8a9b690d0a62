"""Turn collections of pre-chunked documents into vectors and put them into Qdrant."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder._version import __version__

if TYPE_CHECKING:
    from ultimate_embedder.api import embed, upload
    from ultimate_embedder.errors import UltimateEmbedderError
    from ultimate_embedder.output import open_output
    from ultimate_embedder.summary import RunSummary

__all__ = ["RunSummary", "UltimateEmbedderError", "__version__", "embed", "open_output", "upload"]


def __getattr__(name: str) -> Any:
    # imported on first use: `import ultimate_embedder` must stay instant and must not load torch
    if name == "embed":
        from ultimate_embedder.api import embed

        return embed
    if name == "upload":
        from ultimate_embedder.api import upload

        return upload
    if name == "open_output":
        from ultimate_embedder.output import open_output

        return open_output
    if name == "RunSummary":
        from ultimate_embedder.summary import RunSummary

        return RunSummary
    if name == "UltimateEmbedderError":
        from ultimate_embedder.errors import UltimateEmbedderError

        return UltimateEmbedderError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
