"""What the errors of a card's driver and libraries mean; torch passes most of them on as a plain RuntimeError."""

from __future__ import annotations

# the last is of torch's allocator, which fails to ask the driver for what an out-of-memory error is to say
NO_ROOM = ("out of memory", "_alloc_failed", "_allocation_failed", "NVML_SUCCESS == r INTERNAL ASSERT FAILED")
# also raised where the library is broken or the card is lost: they mean a lack of memory only where there is one
NO_ROOM_IF_LITTLE_IS_FREE = (
    "blas_status_not_initialized",
    "blas_status_internal_error",
    "blas_status_execution_failed",
    "dnn_status_not_initialized",
    "dnn_status_internal_error",
)
NO_KERNELS = ("no kernel image is available", "device kernel image is invalid")
# as the driver spells them, from the errors after which "the process must be terminated and relaunched"
LOST = (
    "unspecified launch failure",
    "illegal memory access",
    "device-side assert",
    "launch timed out",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "illegal instruction",
    "misaligned address",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "context is destroyed",
)
# the card is not there any more: a new process will not find it either
GONE = ("fallen off the bus", "GPU is lost", "-capable device is detected", "busy or unavailable")
# these have other causes too: a kernel decides
DOUBTFUL = (
    "unknown error",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "driver shutting down",
    "invalid device context",
    " error: ",  # after the name of a driver or a library: any other that torch up to 2.7 passes on
)


def names_any(text: str, fragments: tuple[str, ...]) -> bool:
    """Whether a text has one of these fragments, in whatever case."""
    lower = text.lower()
    return any(fragment.lower() in lower for fragment in fragments)


def in_one_line(error: BaseException) -> str:
    """What an error says, without tracebacks of other threads before it, and advice after it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    known = (line for line in lines if names_any(line, (*LOST, *GONE, *DOUBTFUL)))
    return next(known, lines[0]).rpartition("Error: ")[2]
