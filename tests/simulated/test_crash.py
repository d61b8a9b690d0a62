"""Two of the crash cases, in a process that has computed nothing yet; `make torture` goes on until 1,000 kills."""

from __future__ import annotations

import json
import subprocess
import sys


def test_runs_that_are_killed_again_and_again_lose_nothing() -> None:
    words = [sys.executable, "-m", "tests.simulated.crash", "--seeds", "1:3", "--most-kills", "2"]  # pooled; two cards
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["failures"] == []
