from __future__ import annotations

from pathlib import Path

import pytest

from ultimate_embedder.events import RunStarted, Warned
from ultimate_embedder.options import make_config
from ultimate_embedder.report import EventLog

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_log_and_not_the_run(tmp_path: Path) -> None:
    log = EventLog(FULL)
    log(RunStarted(options=make_config(tmp_path, tmp_path / "o"), chunks="c", output="o"))
    log(Warned(message="and so on"))
    log.close()
    assert log.problem == "full is incomplete: No space left on device"
