"""Which errors mean that a card is lost to this process, and how a lost one is kept from doing more harm.

After such an error every further call on the card raises, and only a new process can use it again, if anything can.
Other cards usually go on (each has a context of its own), but not always: whether one does is found out by a kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ultimate_embedder.devices.driver_errors import DOUBTFUL, GONE, LOST, names_any
from ultimate_embedder.stop import run_in_time

if TYPE_CHECKING:
    import torch

    from ultimate_embedder.devices.base import Device


_kept: list[Sequence[torch.Tensor]] = []


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


def works_in_time(device: Device, timeout_s: float | None) -> bool:
    """Whether a device runs a small kernel; one that takes longer than `timeout_s` hangs, and is retired."""
    try:
        return run_in_time(device.works, timeout_s)
    except TimeoutError:
        device.retire(f"it has not run a small kernel for {timeout_s:g} s", hangs=True)
        return False


@contextlib.contextmanager
def keeping(
    tensors: Any, is_lost: Callable[[BaseException], bool], places: Callable[[], Sequence[torch.device]]
) -> Iterator[None]:
    """Never free these tensors, which another stream uses, if a device is lost within the block: those on `places`.

    Freeing one that another stream has used records an event, which fails on a lost card; torch does that in a
    destructor, so that the whole process would end. `nn.DataParallel` has such tensors of its own: those that the
    frames of the error refer to are kept too.
    """
    try:
        yield
    except RuntimeError as error:
        if is_lost(error):
            lost = places()
            never_free([tensor for tensor in _tensors_in([tensors, *_locals_of(error)]) if tensor.device in lost])
        raise


class PinnedMemory:
    """Pinned host tensors that a card may have copied from or to, as long as somebody has them.

    Freeing one records an event on the card, just as for tensors there. So those of a lost card are never freed.
    """

    def __init__(self) -> None:
        self._tensors: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

    def add(self, tensor: torch.Tensor) -> None:
        """Know a tensor."""
        self._tensors[id(tensor)] = tensor

    def never_free(self) -> None:
        """Keep all that there are: the card is lost."""
        found = [known() for known in self._tensors.valuerefs()]
        never_free([tensor for tensor in found if tensor is not None])


def never_free(tensors: Sequence[torch.Tensor]) -> None:
    """Keep tensors until the process ends, and also then."""
    if not _kept:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # else it would be emptied at the end of the process
    _kept.append(tensors)


def free_kept() -> None:
    """Free what was kept: the devices work again, as only simulated ones do."""
    _kept.clear()


def _locals_of(error: BaseException) -> Iterator[list[Any]]:
    """The local variables of the functions that an error went through."""
    following = error.__traceback__
    while following is not None:
        yield list(following.tb_frame.f_locals.values())
        following = following.tb_next


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item)
