"""Which errors mean that a card is lost to this process, and how a lost one is kept from doing more harm.

After such an error every further call on the card raises, and only a new process can use it again, if anything can.
Other cards usually go on (each has a context of its own), but not always: whether one does is found out by a kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ultimate_embedder.devices.driver_errors import DOUBTFUL, GONE, LOST, names_any

if TYPE_CHECKING:
    import torch


_kept: list[list[torch.Tensor]] = []


def says_lost(error: BaseException) -> bool:
    """Whether an error leaves no doubt that the card which it is about is lost."""
    return isinstance(error, RuntimeError) and names_any(str(error), (*LOST, *GONE))


def is_doubtful(error: BaseException) -> bool:
    """Whether an error may mean that: one of those above, or one of the driver that is not known here."""
    from_driver = type(error).__name__ == "AcceleratorError"  # torch has it from 2.8 on
    return isinstance(error, RuntimeError) and (from_driver or names_any(str(error), DOUBTFUL))


def is_gone(reason: str) -> bool:
    """Whether a card was lost in a way that a new process does not mend."""
    return names_any(reason, GONE)


def never_free(tensors: Any, error: BaseException, places: Sequence[torch.device]) -> None:
    """Keep tensors on lost devices until the process ends: these, and those that the frames of an error refer to.

    Freeing one that another stream has used records an event, which fails on a lost card; torch does that in a
    destructor, so that the whole process would end. `nn.DataParallel` has such tensors of its own.
    """
    frames, following = [], error.__traceback__
    while following is not None:
        frames.append(following.tb_frame)
        following = following.tb_next
    found = _tensors_in([tensors, *(list(frame.f_locals.values()) for frame in frames)])
    if not _kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # else it would be emptied at the end of the process
    _kept.append([tensor for tensor in found if tensor.device in places])


def free_kept() -> None:
    """Free what was kept: the devices work again, as only simulated ones do."""
    _kept.clear()


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item)
