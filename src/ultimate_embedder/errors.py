"""What can go wrong, as a tree.

UltimateEmbedderError
├── UsageError           an option or a path that cannot work; nothing was started (exit code 2)
├── ModelError           a model that is broken, unreachable or of the wrong kind
│   ├── MissingModelError    it is not on this machine, and cannot or must not be fetched
│   └── HubError             the hub cannot be reached, or refused
├── LeaseError           devices that somebody else works on
├── OutputError          the output folder is in use, full or not writable
├── NoVectorsError       every record of a collection was rejected
├── StoppedError         a deadline or the user ended the run; what is done is kept (exit code 3)
└── UploadError          Qdrant refused, or stayed away

Every message says what is wrong, where, and what to do next.
A record that cannot be embedded is not an error: it becomes a `Rejected` and the rest goes on.
"""

from __future__ import annotations

import traceback


class UltimateEmbedderError(Exception):
    """Base of all errors that this package raises on purpose."""


def forget_frames(error: BaseException) -> None:
    """Drop the frames of an error, whose variables may hold gigabytes on a device, and keep what they say as text."""
    error.original_traceback = "".join(traceback.format_exception(error))  # type: ignore[attr-defined]
    following: BaseException | None = error
    while following is not None:
        following.__traceback__ = None
        following = following.__cause__ or following.__context__


def traceback_of(error: BaseException) -> str:
    """The traceback of an error, whether its frames are still there or not."""
    return getattr(error, "original_traceback", None) or "".join(traceback.format_exception(error))


class UsageError(UltimateEmbedderError):
    """An option or a path that cannot work."""


class ModelError(UltimateEmbedderError):
    """A model that is missing, broken or of the wrong kind."""


class HubError(ModelError):
    """The hub cannot be reached, does not have what was asked for, or refused."""


class MissingModelError(ModelError):
    """A model that is not on this machine, or not wholly, and cannot or must not be fetched."""

    def __init__(self, model: str, why: str, next_step: str | None = None) -> None:
        fetch = f"Fetch it with 'ultimate-embedder models pull {model}', or drop --offline"
        next_step = next_step or f"{fetch} (unset HF_HUB_OFFLINE, if it is set)."
        super().__init__(f"{model} {why.rstrip('.')}. {next_step}")
        self.model = model
        self.why = why


class LeaseError(UltimateEmbedderError):
    """Devices that another model holds, where waiting was not wanted."""


class OutputError(UltimateEmbedderError):
    """The output folder is in use, full or not writable."""


class NoVectorsError(UltimateEmbedderError):
    """Every record of a collection was rejected."""


class StoppedError(UltimateEmbedderError):
    """A deadline or the user ended the run before everything was done."""


class UploadError(UltimateEmbedderError):
    """Qdrant refused the upload, or stayed away."""
