"""All errors, as a tree.

UltimateEmbedderError
├── UsageError           an invalid option or path; nothing was started (exit code 2)
├── ModelError           a model is damaged, unreachable or of the wrong kind
│   └── MissingModelError    it is not on this machine, and --offline is set
├── LeaseError           another model holds the devices
├── OutputError          the output folder is in use, full or not writable
├── NoVectorsError       every record of a collection was rejected
├── StoppedError         a deadline or the user stopped the run; stored vectors are kept (exit code 3)
└── UploadError          Qdrant rejected the upload or could not be reached

Every message says what is wrong, where, and what to do next.
A record that cannot be embedded is not an error: it becomes a `Rejected`, and the run continues.
"""

from __future__ import annotations

import traceback


class UltimateEmbedderError(Exception):
    """Base of all errors that this package raises on purpose."""


def forget_frames(error: BaseException) -> None:
    """Drop the frames of an error, whose variables may hold gigabytes on a device; keep the traceback as text."""
    error.original_traceback = "".join(traceback.format_exception(error))  # type: ignore[attr-defined]
    following: BaseException | None = error
    while following is not None:
        following.__traceback__ = None
        following = following.__cause__ or following.__context__


def traceback_of(error: BaseException) -> str:
    """The traceback of an error, whether its frames are still there or not."""
    return getattr(error, "original_traceback", None) or "".join(traceback.format_exception(error))


class UsageError(UltimateEmbedderError):
    """An invalid option or path."""


class ModelError(UltimateEmbedderError):
    """A model that is missing, damaged or of the wrong kind."""


class MissingModelError(ModelError):
    """A model that is missing or incomplete on this machine while the network must not be used."""

    def __init__(self, model: str, why: str) -> None:
        hint = f"Download it with 'ultimate-embedder models pull {model}', or drop --offline"
        super().__init__(f"{model} {why}. {hint} (unset HF_HUB_OFFLINE, if it is set).")
        self.model = model
        self.why = why


class LeaseError(UltimateEmbedderError):
    """Devices that another model holds, requested without waiting."""


class OutputError(UltimateEmbedderError):
    """The output folder is in use, full or not writable."""


class NoVectorsError(UltimateEmbedderError):
    """Every record of a collection was rejected."""


class StoppedError(UltimateEmbedderError):
    """A deadline or the user stopped the run before it was complete."""


class UploadError(UltimateEmbedderError):
    """Qdrant rejected the upload or could not be reached."""
