"""What the errors of a card's driver and libraries mean; torch passes most of them on as a plain RuntimeError."""

from __future__ import annotations

NO_ROOM = ("out of memory", "_alloc_failed", "_allocation_failed")
# also raised where the library is broken or the card is lost: they mean a lack of memory only where there is one
NO_ROOM_IF_LITTLE_IS_FREE = ("blas_status_not_initialized", "dnn_status_not_initialized", "dnn_status_internal_error")
NO_KERNELS = ("no kernel image is available", "device kernel image is invalid")


def names_any(error: BaseException, fragments: tuple[str, ...]) -> bool:
    """Whether the text of an error has one of these fragments."""
    text = str(error).lower()
    return any(fragment in text for fragment in fragments)


def first_line(error: BaseException) -> str:
    """What happened, without the advice that follows it."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
