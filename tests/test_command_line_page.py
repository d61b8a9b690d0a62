"""docs/command-line.md names every environment variable, exit code and command."""

from __future__ import annotations

import re
from pathlib import Path

from ultimate_embedder.cli import build_parser, process

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "command-line.md").read_text("utf-8")
VARIABLE = re.compile(r'"((?:HF|EMBEDDER|ULTIMATE_EMBEDDER|XDG|PYTORCH|QDRANT)_[A-Z0-9_]+)"')


def test_every_environment_variable_is_in_the_table() -> None:
    read = {name for path in (ROOT / "src").rglob("*.py") for name in VARIABLE.findall(path.read_text("utf-8"))}
    assert len(read) > 10
    assert sorted(name for name in read if f"`{name}`" not in PAGE) == []


def test_every_exit_code_is_in_the_table() -> None:
    codes = [value for name, value in vars(process).items() if name.startswith("EXIT_")]
    assert [code for code in codes if f"\n| {code} | " not in PAGE] == []


def test_every_command_is_named() -> None:
    commands = re.findall(r"^  (\w+) ", build_parser().format_help().partition("commands:")[2], re.MULTILINE)
    assert {"embed", "upload", "models"} <= set(commands)
    assert [command for command in commands if f"\nultimate-embedder {command} " not in PAGE] == []
