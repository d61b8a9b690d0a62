from __future__ import annotations

import os
from pathlib import Path

import pytest

from ultimate_embedder.events import RunStarted, Warned
from ultimate_embedder.options import make_config
from ultimate_embedder.report import EventLog

FULL = Path("/dev/full")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX pipes")
def test_a_pipe_in_the_place_of_the_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    log = EventLog(tmp_path / "events.jsonl")
    log(RunStarted(options=make_config(tmp_path, tmp_path / "o"), chunks="c", output="o"))
    assert (log.problem or "").startswith("events.jsonl is incomplete: ")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_log_and_not_the_run(tmp_path: Path) -> None:
    log = EventLog(FULL)
    log(RunStarted(options=make_config(tmp_path, tmp_path / "o"), chunks="c", output="o"))
    log(Warned(message="and so on"))
    log.close()
    assert log.problem == "full is incomplete: No space left on device"
