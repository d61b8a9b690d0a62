"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from ultimate_embedder.cli import main


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process."""

    def run_main(*arguments: object) -> Result:
        capsys.readouterr()  # what making a tiny model printed
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run_main
