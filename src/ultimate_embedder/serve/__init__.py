"""The local page and API of an output: `ultimate-embedder serve OUT`. Needs the extra `serve`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from ultimate_embedder.errors import UsageError
from ultimate_embedder.serve.options import ServeConfig, make_serve_config

__all__ = ["ServeConfig", "make_serve_config", "serve"]

PACKAGES = ("starlette", "uvicorn")


def serve(config: ServeConfig, report: Callable[[str], None]) -> None:
    """Serve an output until Ctrl-C or SIGTERM; `report` gets the address, once the server answers there."""
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(f"serve needs {' and '.join(missing)}: pip install 'ultimate-embedder[serve]'")
    from ultimate_embedder.serve.run import open_server

    open_server(config, report).run()
