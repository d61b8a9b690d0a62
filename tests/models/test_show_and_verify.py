"""`models show` and `models verify` take what `--models` takes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.models.test_resolve import put_into_cache
from tests.support.tiny_models import tiny_model
from ultimate_embedder.cli import main
from ultimate_embedder.models import resolve_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    (tmp_path / "hub").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a small model that a test may spoil."""
    return Path(shutil.copytree(tiny_model("bert"), tmp_path / "my-model"))


def show(capsys: pytest.CaptureFixture[str], name: str) -> dict[str, str]:
    capsys.readouterr()
    assert main(["models", "show", name]) == 0
    return {line[:16].strip(): line[17:] for line in capsys.readouterr().out.splitlines()}


def test_show_tells_what_the_files_of_a_folder_say(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = show(capsys, str(folder))
    model = resolve_model(str(folder))
    assert rows["key"] == "my-model (not in the registry)"
    assert (rows["path"], rows["dims"], rows["document prompt"]) == (str(folder), "64", "none")
    assert int(rows["token limit"]) > 0
    assert (rows["files digest"], rows["size"]) == (model.digest, f"{model.size_bytes / 1e6:,.1f} MB")


def test_show_tells_the_prompts_in_the_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "config_sentence_transformers.json"
    path.write_text('{"prompts": {"query": "find: ", "passage": "text: "}}')
    rows = show(capsys, str(folder))
    assert (rows["document prompt"], rows["query prompt"]) == ("'text: '", "'find: '")


def test_show_takes_a_hub_id_that_is_in_the_cache(
    cache: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_into_cache(cache, "Some/Model", folder)
    rows = show(capsys, "Some/Model")
    assert (rows["key"], rows["hub id"], rows["dims"]) == ("model (not in the registry)", "Some/Model", "64")


def test_show_of_a_hub_id_that_is_not_here_says_how_to_fetch_it(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "show", "Some/Model"]) == 1
    assert "'ultimate-embedder models pull Some/Model'" in capsys.readouterr().err


def test_verify_takes_folders_hub_ids_and_packages(
    cache: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = put_into_cache(cache, "Some/Model", folder)
    assert main(["models", "verify", str(folder), "Some/Model", "all-minilm-l6-v2"]) == 0
    plain, cached, packaged = capsys.readouterr().out.splitlines()
    assert plain == f"my-model: OK: complete; there are no checksums to compare ({folder})"
    assert cached == f"model: OK: complete; there are no checksums to compare ({snapshot})"
    assert packaged.startswith("all-minilm-l6-v2: OK: all checksums match (")


def test_verify_finds_what_a_folder_lacks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "1_Pooling" / "config.json").unlink()
    assert main(["models", "verify", str(folder)]) == 1
    assert "1_Pooling/config.json is missing" in capsys.readouterr().out


def test_verify_finds_a_package_whose_files_were_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ultimate_embedder.models.check.file_sha256", lambda path: "00" * 32)
    assert main(["models", "verify", "all-minilm-l6-v2"]) == 1
    assert "is damaged: its sha256 is not that of the installed package" in capsys.readouterr().out


def test_verify_of_a_model_that_is_not_here_says_how_to_fetch_it(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "verify", "Some/Model"]) == 1
    assert capsys.readouterr().out.startswith(
        "Some/Model: not on this machine. Download it with 'ultimate-embedder models"
    )
