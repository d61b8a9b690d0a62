from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.gpu_check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_check_of_a_card_writes_one_file(tmp_path: Path) -> None:
    output = tmp_path / "check.json"
    done = run("--devices", "simulated:1GiB", "--texts", "20", "--only", "lease or recognised", "--output", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    checked = json.loads(output.read_text("utf-8"))
    assert [(test["name"], test["outcome"]) for test in checked["tests"]] == [
        ("test_a_lease_leaves_nothing_behind", "passed"),
        ("test_a_real_lack_of_memory_is_recognised", "passed"),
    ]
    (card,) = checked["cards"]
    assert card["dtype"] == "float16"
    assert checked["benchmark"]["status"] == "completed"
    assert checked["benchmark"]["leftovers"] == []


def test_without_a_card_it_says_so() -> None:
    done = run("--devices", "cuda")
    assert done.returncode == 2
    assert "torch sees no card here" in done.stderr
