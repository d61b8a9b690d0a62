"""Silence the progress bars and log messages of transformers while a model loads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Silence progress bars and informational messages of transformers within the block."""
    from transformers.utils import logging as untyped_logging

    logging: Any = untyped_logging
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
