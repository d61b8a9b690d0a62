"""The notebook for Kaggle runs from its first cell to its last, with small models on simulated cards."""

from __future__ import annotations

import html
import json
import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.output import Output

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "kaggle.ipynb"
DEVICES = "simulated:2x200MiB"
nbclient: Any = pytest.importorskip("nbclient")
nbformat: Any = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")


class Kaggle:
    """Folders like those of a Kaggle session."""

    def __init__(self, root: Path) -> None:
        self.input, self.working = root / "input", root / "working"
        self.output = self.working / "out"
        self.models = f"{tiny_model('bert')}=0.6,{tiny_model('qwen2', hidden=32)}=0.4"
        (self.input / "my-chunks" / "docs").mkdir(parents=True)
        self.working.mkdir()
        records = [{"text": f"chunk number {number} " * (1 + number % 6)} for number in range(40)]
        (self.input / "my-chunks" / "docs" / "a_chunks.json").write_text(json.dumps(records))

    def run(self, without: Collection[str] = (), **settings: Any) -> dict[str, str]:
        """Execute the notebook with these settings; gives what each code cell printed or showed, by its first line.

        `without`: tags of cells that are left out.
        """
        notebook = nbformat.read(NOTEBOOK, 4)
        notebook.cells = [cell for cell in notebook.cells if not set(cell.metadata.get("tags", ())) & set(without)]
        known = {
            "CHUNKS": str(self.input / "my-chunks"),
            "MODELS": self.models,
            "OFFLINE": True,
            "OUTPUT": str(self.output),
            "INPUTS": str(self.input),
            "OPTIONS": f"--devices {DEVICES} --export parquet",
        }
        (place,) = (n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ()))
        lines = [f"{name} = {value!r}" for name, value in {**known, **settings}.items()]
        notebook.cells.insert(place + 1, nbformat.v4.new_code_cell("\n".join(lines)))
        nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert not [each for cell in code for each in cell.outputs if each.get("name") == "stderr"]
        return {cell.source.splitlines()[0]: "".join(map(_shown, cell.outputs)) for cell in code}

    def attach(self) -> Path:
        """End the session and attach its output to the next one."""
        attached = self.input / "my-last-run" / "out"
        attached.parent.mkdir(exist_ok=True)
        shutil.rmtree(attached, ignore_errors=True)
        return Path(shutil.move(self.output, attached))


def _shown(output: Any) -> str:
    return str(output.get("text") or output.get("data", {}).get("text/html", ""))


def _of(shown: dict[str, str], word: str) -> str:
    (found,) = (text for line, text in shown.items() if line.startswith(word))
    return found


@pytest.fixture
def kaggle(tmp_path: Path) -> Kaggle:
    return Kaggle(tmp_path)


def test_the_notebook_is_stored_without_outputs_and_for_kaggle() -> None:
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    tagged = {tag: "".join(cell["source"]) for cell in notebook["cells"] for tag in cell["metadata"].get("tags", ())}
    settings = tagged["parameters"]
    assert 'OUTPUT = "/kaggle/working/out"' in settings
    assert 'GPUS = "t4x2"' in settings


def test_a_session_continues_from_an_attached_output_and_packs_the_result(kaggle: Kaggle) -> None:
    """With one model, without the machine and the plan; the earlier session is made in this process."""
    first = kaggle.models.split("=")[0]
    embed(kaggle.input / "my-chunks", kaggle.output, models=[first], exports=[], quiet=True, devices=DEVICES)
    attached = kaggle.attach()
    shown = kaggle.run(without=("doctor", "plan"), MODELS=first)
    assert f"continues from: {attached}" in _of(shown, "import json")
    assert "all done" in _of(shown, "resume")
    assert html.escape("<h1>40 of 40 chunks embedded") in _of(shown, "import html")
    summary = Output(kaggle.output).summary
    assert summary is not None
    assert summary.ok
    assert [each.encoded_texts for each in summary.collections[0].passes] == [0]
    with zipfile.ZipFile(kaggle.working / "out.zip") as packed:
        assert {"summary.json", "report.html", "docs/chunks.parquet"} <= set(packed.namelist())


@pytest.mark.slow
def test_two_sessions_from_the_first_cell_to_the_last(kaggle: Kaggle) -> None:
    shown = kaggle.run(PACK=False)
    assert "continues from: nothing" in _of(shown, "import json")
    assert "problems" in _of(shown, "healthy")
    assert "fits: 2 x Tesla T4" in _of(shown, "fits")
    assert "all done" in _of(shown, "resume")
    summary = Output(kaggle.output).summary
    assert summary is not None
    assert summary.ensemble_mode == "exclusive"
    assert not (kaggle.working / "out.zip").exists()
    kaggle.attach()
    again = kaggle.run()
    assert "all done" in _of(again, "resume")
    summary = Output(kaggle.output).summary
    assert summary is not None
    assert [each.encoded_texts for each in summary.collections[0].passes] == [0, 0]


@pytest.mark.slow
def test_as_it_is_it_embeds_sample_texts(kaggle: Kaggle) -> None:
    shown = kaggle.run(without=("doctor", "plan"), CHUNKS="", MODELS="all-minilm-l6-v2")
    assert html.escape("<h1>4 of 4 chunks embedded") in _of(shown, "import html")
