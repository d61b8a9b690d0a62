"""Some of the crash cases, in a process that has computed nothing yet; `make torture` runs a hundred."""

from __future__ import annotations

import subprocess
import sys


def test_runs_that_are_killed_again_and_again_lose_nothing() -> None:
    words = [sys.executable, "-m", "tests.simulated.crash", "--cases", "5", "--kills", "4"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed, 0 failed" in done.stdout
