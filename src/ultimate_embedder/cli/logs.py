"""Messages of a command: how many are shown on stderr, and a file that has them too."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from ultimate_embedder.config import Option, declared_options
from ultimate_embedder.errors import UsageError
from ultimate_embedder.terminal import LIBRARY_LEVELS, PACKAGE_LOGGER, printable, show

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
VERBOSE = ("info", "debug")
MESSAGES = "messages"
FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_options(
    *,
    log_level: Annotated[
        str | None,
        Option(
            "messages on stderr; info has warnings of libraries too, and debug everything",
            MESSAGES,
            "LEVEL",
            choices=tuple(LEVELS),
            default="progress and warnings",
        ),
    ] = None,
    log_file: Annotated[
        str | Path | None,
        Option("append messages to this file, of level info at least", MESSAGES, "FILE"),
    ] = None,
) -> None:
    """The options of every command about its messages."""


def add_verbose(target: argparse._ActionsContainer) -> None:
    """Add `-v`."""
    help = "more messages: -v is --log-level info, -vv is debug"
    target.add_argument("-v", "--verbose", action="count", default=argparse.SUPPRESS, help=help)


def read_verbose(given: dict[str, object]) -> None:
    """Replace `-v` by the level that it means."""
    count = given.pop("verbose", None)
    if not isinstance(count, int):
        return
    level = VERBOSE[min(count, len(VERBOSE)) - 1]
    if given.get("log_level") not in (None, level):
        raise UsageError(f"-v and --log-level {given['log_level']} contradict each other. Drop one.")
    given["log_level"] = level


@contextlib.contextmanager
def capture_logs(level: str | None = None, file: str | Path | None = None) -> Iterator[int | None]:
    """During the block, show log records of all libraries at a level, and write them to a file.

    Gives the least level of our own messages that is shown; None if no level was asked for. Those are printed by the
    progress display, which is why the handler here leaves them out.
    """
    level_option, _ = declared_options(log_options)
    least = LEVELS[level_option.read(level)] if level is not None else None
    lowest = least if file is None else min(logging.INFO, least or logging.INFO)
    if lowest is None:
        yield None
        return
    handlers: list[logging.Handler] = [_Screen(LIBRARY_LEVELS.get(least, least))] if least is not None else []
    if file is not None:
        handlers.append(_LogFile(Path(file), lowest))
    root, ours = logging.getLogger(), logging.getLogger(PACKAGE_LOGGER)
    before = root.level, ours.level
    root.setLevel(LIBRARY_LEVELS.get(lowest, lowest))
    ours.setLevel(lowest)
    logging.captureWarnings(True)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield least
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        logging.captureWarnings(False)
        root.setLevel(before[0])
        ours.setLevel(before[1])


def with_logs(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The same command with its messages captured; `options.least_level` is what its progress shows."""

    def call(options: argparse.Namespace) -> int:
        given = vars(options)
        read_verbose(given)
        with capture_logs(given.pop("log_level"), given.pop("log_file")) as least:
            options.least_level = least
            return run(options)

    return call


class _Screen(logging.Handler):
    """Prints records of other libraries on stderr, also where a progress bar has replaced it."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] != PACKAGE_LOGGER:
            show(f"{record.levelname.lower()}: {record.name}: {record.getMessage()}", sys.stderr)


class _LogFile(logging.FileHandler):
    """Appends records to a file. A disk that is full does not stop the run: it is said once."""

    def __init__(self, path: Path, level: int) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(path, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"--log-file {path} cannot be written: {error.strerror}. Choose another file.") from error
        self.setLevel(level)
        self.setFormatter(logging.Formatter(FILE_FORMAT))
        self._failed = False

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), lines=True)

    def close(self) -> None:
        """Close the file; what is in its buffer may not fit on the disk either."""
        with contextlib.suppress(OSError):  # it was said
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of logging
        if not self._failed:
            self._failed = True
            show(f"warning: {self.baseFilename} is incomplete: {sys.exc_info()[1]}", sys.stderr)
