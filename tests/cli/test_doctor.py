"""`doctor` on this machine, whatever it is. It never imports torch itself: a broken one is a line like any other."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partialmethod
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from ultimate_embedder.report.doctor import Place


def test_doctor_prints_json_and_its_exit_code_says_whether_there_is_a_problem(tmp_path: Path) -> None:
    code = "import sys; from ultimate_embedder.cli import main; code = main(sys.argv[1:]); "
    code += "assert 'torch' not in sys.modules; sys.exit(code)"
    command = [sys.executable, "-c", code, "doctor", "--json", "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    checks = json.loads(done.stdout)["checks"]
    assert done.stderr == ""
    assert done.returncode == int(any(check["state"] == "problem" for check in checks))
    assert {tuple(check) for check in checks} == {("name", "state", "found", "remedy")}
    states = {check["name"]: check["state"] for check in checks}
    assert len(states) == len(checks)
    assert (states["python"], states["torch"], states["cpu fp32"]) == ("ok", "ok", "ok")
    assert list(tmp_path.iterdir()) == []


def test_the_table_ends_with_the_totals(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "__init__", partialmethod(Place.__init__, trials="tests.support.broken_machine"))
    code, out, err = run("doctor", "-o", tmp_path)
    assert (code, err) == (1, "")
    assert "\nproblem  torch                  cannot be imported: " in out
    assert out.splitlines()[-1].endswith("1 problem")
    assert max(map(len, out.splitlines())) <= 80


def test_an_option_that_doctor_has_not_is_refused(run: Run) -> None:
    code, _, err = run("doctor", "--onlin")
    assert (code, "Did you mean --online?" in err) == (2, True)
