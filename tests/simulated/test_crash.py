"""Some of the crash cases, in processes that have computed nothing yet; `make torture` goes on until 1,000 kills."""

from __future__ import annotations

import subprocess
import sys


def test_runs_that_are_killed_again_and_again_lose_nothing() -> None:
    words = [sys.executable, "-m", "tests.simulated.crash", "--kills", "1", "--most-kills", "2", "--jobs", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed, 0 failed" in done.stdout
