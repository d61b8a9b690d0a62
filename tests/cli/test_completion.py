"""Completion by the shell: what argcomplete answers when a shell asks, in a process of its own, as shells do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("argcomplete")
if sys.platform == "win32":
    pytest.skip("the answer is written to a file descriptor of bash", allow_module_level=True)

SHOW_MODULES = """
import sys
import argcomplete
from ultimate_embedder.cli import build_parser
try:
    argcomplete.autocomplete(build_parser(), exit_method=sys.exit, output_stream=sys.stdout)
except SystemExit:
    sys.stdout.write("|" + " ".join(sys.modules))
"""
HEAVY = {"torch", "transformers", "numpy", "pydantic", "pyarrow"}


def ask(line: str, folder: Path) -> list[str]:
    """The words with which a shell would complete the line."""
    reading, writing = os.pipe()
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    code = "import os, sys; os.dup2(int(sys.argv.pop()), 8); from ultimate_embedder.cli import run; run()"
    with os.fdopen(reading) as answer:
        done = subprocess.Popen(
            [sys.executable, "-c", code, str(writing)],
            env={**os.environ, **asked},
            cwd=folder,
            pass_fds=[writing],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(writing)
        words = answer.read().split("\n")
        assert done.wait() == 0
    return [word.strip() for word in words if word.strip()]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ultimate-embedder models p", ["pull"]),
        ("ultimate-embedder embed chunks --mode se", ["sequential"]),
        ("ultimate-embedder embed chunks --export npy,p", ["npy,parquet"]),
        ("ultimate-embedder embed chunks --models all-minilm-l6-v2,bge-m", ["all-minilm-l6-v2,bge-m3"]),
        ("ultimate-embedder embed my", ["my-chunks/"]),
    ],
)
def test_a_word_is_completed(line: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "my-chunks").mkdir()
    assert ask(line, tmp_path) == words


def test_nothing_heavy_is_loaded_to_complete_an_option() -> None:
    line = "ultimate-embedder embed --mo"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW_MODULES], env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    answer, modules = done.stdout.split("|")
    assert answer.split() == ["--models", "--mode"]
    assert not HEAVY & set(modules.split())
