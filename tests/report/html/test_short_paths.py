"""A page that is sent around does not tell the folders of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.report.html.conftest import Page
from ultimate_embedder.cli import main
from ultimate_embedder.report.html.short_paths import with_short_paths
from ultimate_embedder.summary import RunOptions, RunSummary


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/home/me/a b/out/docs/x.npy is missing", "…/out/docs/x.npy is missing"),
        ("cannot open '/srv/data/a.json': no", "cannot open '…/a.json': no"),
        ("and/or 1/2, half of it, /tmp, http://host/a/b", "and/or 1/2, half of it, /tmp, http://host/a/b"),
        (r"C:\Users\me\chunks\a.json has no text", "…/a.json has no text"),
    ],
)
def test_of_a_path_only_its_name_is_left(before: str, after: str) -> None:
    summary = RunSummary(output="/home/me/a b/out", options=RunOptions(chunks=["chunks"]), warnings=[before])
    assert with_short_paths(summary).warnings == [after]


def test_the_command_writes_a_page_without_folders(finished: Path, tmp_path: Path, capsys: Any) -> None:
    copied = tmp_path / "copy"
    copied.mkdir()
    for name in ("summary.json", "events.jsonl"):
        (copied / name).write_bytes((finished / name).read_bytes())
    assert main(["report", str(copied), "--short-paths"]) == 0
    page = Page((copied / "report.html").read_text("utf-8"))
    assert str(finished.parent) not in page.words + str(page.attributes)
    assert "…/out" in page.words
    assert main(["report", str(copied)]) == 0
    assert str(finished.parent) in Page((copied / "report.html").read_text("utf-8")).words
    capsys.readouterr()
