"""`watch`: a run as it goes on, from another terminal or in a copied folder."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ultimate_embedder.cli.parser import Commands, add_command
from ultimate_embedder.cli.process import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_PARTIAL, EXIT_RUNNING
from ultimate_embedder.errors import OutputError, UsageError
from ultimate_embedder.output import EVENTS_NAME
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.terminal import counted, printable, show, write_line

if TYPE_CHECKING:
    from ultimate_embedder.report import live

LOOK_S = 0.25
LONGEST_WAIT_S = 3600.0
WIDTH = 120  # where there is no terminal
CODES = {"finished": EXIT_OK, "failed": EXIT_FAILED, "killed": EXIT_FAILED, "not_running_here": EXIT_FAILED}
CODES |= {"stopped": EXIT_PARTIAL, "running": EXIT_RUNNING, "waiting": EXIT_RUNNING}


def add_commands(commands: Commands) -> None:
    """Declare the command."""
    watch = add_command(
        commands,
        "watch",
        _watch,
        help="show a run while it goes on, from another terminal",
        description=f"Show the run that writes an output: devices, passes, mitigations, from its {EVENTS_NAME} alone, "
        "also in a copied folder. Ends when the run has ended. Ctrl-C ends the view, not the run.",
        examples="watch out/\nwatch out/ --once\nwatch out/ --once --json",
        epilog="Exit codes: 0 the run has finished well, 1 it failed or was killed, 2 invalid usage, 3 it was stopped "
        "early, 5 it is still going on (--once), 130 Ctrl-C.",
    )
    watch.add_argument("folder", metavar="DIR", type=Path, help="the --output of embed")
    watch.add_argument("--once", action="store_true", help="print the state and end")
    watch.add_argument("--json", action="store_true", help="print the state as JSON; needs --once")


def _watch(options: argparse.Namespace) -> int:
    from ultimate_embedder.report import live

    if options.json and not options.once:
        raise UsageError("--json prints one state. Give --once as well.")
    if not options.folder.is_dir():
        raise UsageError(f"{options.folder} is not a folder. Give the --output of an embed.")
    watch = live.RunWatch(options.folder)
    try:
        look = _look_once(watch, options) if options.once else _follow(watch)
    except OSError as error:
        raise OutputError(f"{options.folder / EVENTS_NAME} cannot be read: {error.strerror}.") from error
    return EXIT_INTERRUPTED if look is None else CODES[look.verdict.status]


def _look_once(watch: live.RunWatch, options: argparse.Namespace) -> live.Look:
    look = watch.look_once()
    if look.view.status == "waiting":
        raise UsageError(f"{options.folder} has no {EVENTS_NAME} with events of a run. Give the --output of an embed.")
    if options.json:
        write_line(json.dumps(look.as_dict(), indent=2), sys.stdout)
    else:
        _print_state(look)
    return look


def _follow(watch: live.RunWatch) -> live.Look | None:
    """Show the run until it ends; None if that was not waited for."""
    from ultimate_embedder.report import live

    screen, stop = live.make_screen(sys.stdout, partial(write_line, stream=sys.stdout)), StopSwitch()
    try:
        with stop.on_signals():
            look = _draw_until_over(watch, screen, stop)
    finally:
        screen.close()
    if look is None:
        show("stopped watching; the run is not stopped by that", sys.stderr)
    else:
        _print_state(look)
    return look


def _draw_until_over(watch: live.RunWatch, screen: live.Screen, stop: StopSwitch) -> live.Look | None:
    drawn_at, waits = time.monotonic() - LONGEST_WAIT_S, False
    while stop.reason is None:
        look = watch.look()
        if look.verdict.is_over:
            return look
        if look.verdict.status == "waiting" and not waits:
            waits = True
            screen.say(f"{printable(str(watch.folder))}: {look.verdict.words}; waiting for one (Ctrl-C ends)")
        if look.unsaid:
            screen.say(f"… {counted(look.unsaid, 'earlier line')}")
        for line in look.said:
            screen.say(line)
        if time.monotonic() - drawn_at >= (screen.every_s or 0.0):
            drawn_at = time.monotonic()
            screen.draw(look.view)
        time.sleep(LOOK_S)
    return None


def _print_state(look: live.Look) -> None:
    from ultimate_embedder.report import live

    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    for line in live.state_lines(look, width, sys.stdout.encoding):
        write_line(line, sys.stdout)
