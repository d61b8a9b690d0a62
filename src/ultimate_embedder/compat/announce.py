"""Say what a notebook's user expects to read, whether logging is configured or not."""

from __future__ import annotations

import logging
import sys

from ultimate_embedder.terminal import show

EXCLUSIVE_STAGING = "Exclusive ensemble mode: staging primary model to CPU"
EXCLUSIVE_DETECTED = "Exclusive ensemble mode detected: each model leases all devices for the whole collection"


def announce(logger: logging.Logger, message: str) -> None:
    """Log a line, or print it where nobody would get it: a notebook in which nobody has configured logging."""
    if logger.hasHandlers() and logger.isEnabledFor(logging.INFO):
        logger.info(message)
    else:
        show(message, sys.stderr)
