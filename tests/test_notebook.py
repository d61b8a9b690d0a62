"""The notebook of the examples runs from its first cell to its last, and shows nothing ugly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

QUICKSTART = Path(__file__).resolve().parents[1] / "examples" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def executed() -> dict[str, list[Any]]:
    """The outputs of each code cell, by the last line of its source."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    notebook = nbformat.read(QUICKSTART, 4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    return {cell.source.splitlines()[-1]: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def test_the_notebook_is_stored_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat")
    assert not any(cell.get("outputs") for cell in nbformat.read(QUICKSTART, 4).cells)


def test_nothing_is_written_to_stderr(executed: dict[str, list[Any]]) -> None:
    assert not [each for outputs in executed.values() for each in outputs if each.get("name") == "stderr"]


def test_texts_are_encoded(executed: dict[str, list[Any]]) -> None:
    assert executed["vectors.shape"][-1]["data"]["text/plain"] == "(3, 384)"


def test_progress_is_one_block_and_the_summary_a_table(executed: dict[str, list[Any]]) -> None:
    progress, summary = executed["summary"]
    assert "notes · all-minilm-l6-v2 on cpu: 3 of 3" in progress["data"]["text/html"]
    assert "<progress" not in progress["data"]["text/html"]
    assert '<td style="text-align: left">completed</td>' in summary["data"]["text/html"]
    assert summary["data"]["text/plain"] == "<RunSummary: notes: 3 of 4 chunks embedded>"


def test_the_output_and_its_chunks_are_tables(executed: dict[str, list[Any]]) -> None:
    assert "npy, parquet" in executed["output"][-1]["data"]["text/html"]
    (frame,) = [outputs for line, outputs in executed.items() if "to_pandas()" in line]
    assert "note-2" in frame[-1]["data"]["text/html"]
    assert executed["type(vectors).__name__, vectors.shape"][-1]["data"]["text/plain"] == "('memmap', (3, 384))"
