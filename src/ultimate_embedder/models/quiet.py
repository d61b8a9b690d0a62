"""Progress bars and log messages of transformers while a model loads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from ultimate_embedder.terminal import LIBRARY_LEVELS, PACKAGE_LOGGER


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence progress bars of transformers within the block, and its messages, unless our logger has a level.

    With a level, its messages go where other log records go: transformers has a handler of its own otherwise.
    """
    from transformers.utils import logging as untyped_logging

    theirs: Any = untyped_logging
    level = logging.getLogger(PACKAGE_LOGGER).level
    verbosity = theirs.get_verbosity()
    bars = theirs.is_progress_bar_enabled()
    theirs.set_verbosity(LIBRARY_LEVELS.get(level, level) or logging.ERROR)
    theirs.disable_progress_bar()
    if level:
        theirs.disable_default_handler()
        theirs.enable_propagation()
    try:
        yield
    finally:
        if level:
            theirs.disable_propagation()
            theirs.enable_default_handler()
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()
