"""Some of the faults at file operations, in a process that has computed nothing yet; `make torture` tries all."""

from __future__ import annotations

import subprocess
import sys


def test_a_run_with_a_fault_at_a_file_operation_is_completed_by_the_next() -> None:
    words = [sys.executable, "-m", "tests.file_operations", "--every", "100", "--faults", "kill,ENOSPC"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
