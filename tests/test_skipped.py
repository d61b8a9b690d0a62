"""`--skip-existing`: a skipped collection is reported with the counts, exports and target of what exists."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import RunSummary, embed
from ultimate_embedder.cli import main
from ultimate_embedder.compat.script import main as v5
from ultimate_embedder.errors import StoppedError
from ultimate_embedder.export import find_exports
from ultimate_embedder.output import CollectionOutput
from ultimate_embedder.summary import CollectionSummary

RECORDS: list[Any] = [*(f"text {number}" for number in range(10)), "text 0", "  ", 17]
FOUND, EMBEDDED, REJECTED, DISTINCT, DIM = 13, 11, 2, 10, 32
TARGET = "docs__tiny-bert"
KINDS = ["npy", "parquet", "qdrant"]
ADDED = ("found", "distinct_texts", "target", "passes", "vectors")  # not in journals of earlier versions

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "cpu")


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny_model("bert", hidden=DIM, layers=1))


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    return write_chunks(RECORDS)


@pytest.fixture
def out(chunks: Path, model: str, tmp_path: Path) -> Path:
    """The output of a run that was completed."""
    assert embed(chunks, tmp_path / "out", models=model, quiet=True).ok
    return tmp_path / "out"


def skip(chunks: Path, out: Path, model: str, **options: Any) -> CollectionSummary:
    summary = embed(chunks, out, models=model, skip_existing=True, quiet=True, **options)
    assert summary.ok
    (collection,) = summary.collections
    assert collection.status == "skipped_existing"
    return collection


def edit_journal(out: Path, edit: Edit) -> None:
    path = CollectionOutput(out / "docs").export_journal
    journal = json.loads(path.read_text("utf-8"))
    del journal["checksum"]  # as of an earlier version
    edit(journal)
    path.write_text(json.dumps(journal), "utf-8")


def as_of_an_earlier_version(journal: dict[str, Any]) -> None:
    for noted in journal.values():
        for name in ADDED:
            del noted[name]


def assert_describes_what_exists(collection: dict[str, Any], before: CollectionSummary) -> None:
    counts = collection["chunks"]
    assert (counts["found"], counts["embedded"], counts["rejected"]) == (FOUND, EMBEDDED, REJECTED)
    assert (counts["distinct_texts"], counts["newly_encoded"]) == (DISTINCT, 0)
    assert collection["target_qdrant_collection"] == TARGET
    assert collection["vectors"] == [{"name": "", "dim": DIM, "kind": "dense"}]
    then = [export.model_dump(exclude={"seconds"}) for export in before.exports]
    now = [{name: value for name, value in each.items() if name != "seconds"} for each in collection["exports"]]
    assert now == then
    assert [each["seconds"] for each in collection["exports"]] == [0.0] * len(KINDS)
    assert (collection["warnings"], collection["passes"], collection["error"]) == ([], [], None)


def test_python_gives_the_counts_exports_and_target_of_what_exists(chunks: Path, out: Path, model: str) -> None:
    (before,) = RunSummary.model_validate_json((out / "summary.json").read_bytes()).collections
    skipped = skip(chunks, out, model)
    assert_describes_what_exists(skipped.model_dump(mode="json"), before)
    skipped_again = skip(chunks, out, model)
    assert_describes_what_exists(skipped_again.model_dump(mode="json"), before)


def test_the_command_line_shows_them_in_the_table_and_in_the_summary(
    chunks: Path, out: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (before,) = RunSummary.model_validate_json((out / "summary.json").read_bytes()).collections
    capsys.readouterr()
    command = ["embed", str(chunks), "--output", str(out), "--models", model, "--skip-existing", "--quiet"]
    assert main(command) == 0
    heading, row, *lines = capsys.readouterr().out.splitlines()
    shown = dict(zip(heading.split(), row.split(), strict=True))
    assert shown["status"] == "skipped_existing"
    assert (shown["found"], shown["embedded"], shown["rejected"]) == (str(FOUND), str(EMBEDDED), str(REJECTED))
    assert (shown["new"], shown["dims"]) == ("0", str(DIM))
    assert f"docs → {out / 'docs' / 'chunks.parquet'}" in lines
    assert f"docs: 'upload' writes to the Qdrant collection {TARGET}" in lines
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    assert_describes_what_exists(summary["collections"][0], before)


def test_the_v5_script_has_them_in_its_summary(
    chunks: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["--chunks-root", str(chunks), "--output-root", str(out), "--model", model]
    path = out / "embedding_summary.json"
    assert v5(command) == 0
    before = json.loads(path.read_text("utf-8"))["collections"][0]
    assert v5([*command, "--skip-existing"]) == 0
    now = json.loads(path.read_text("utf-8"))["collections"][0]
    assert (before["status"], now["status"]) == ("completed", "skipped_existing")
    assert now["target_qdrant_collection"] == before["target_qdrant_collection"] == TARGET
    for name in ("found", "embedded", "rejected", "distinct_texts"):
        assert now["chunks"][name] == before["chunks"][name]
    assert [each["path"] for each in now["exports"]] == [each["path"] for each in before["exports"]]
    assert all(Path(each["path"]).exists() for each in now["exports"])
    assert (
        f"'upload' writes to the Qdrant collection {TARGET}"
        in capsys.readouterr().out.rpartition("skipped_existing")[2]
    )


def test_an_ensemble_is_skipped_with_all_its_vectors(chunks: Path, model: str, tmp_path: Path) -> None:
    models = f"{model},{tiny_model('mpnet', hidden=48, layers=1)}"
    assert embed(chunks, tmp_path / "out", models=models, quiet=True).ok
    skipped = skip(chunks, tmp_path / "out", models)
    assert [(each.name, each.dim) for each in skipped.vectors] == [("tiny-bert", DIM), ("tiny-mpnet", 48)]
    assert skipped.target_qdrant_collection == "docs__tiny-bert__tiny-mpnet__named"


def test_records_that_are_rejected_later_are_counted_though_the_exports_stay(
    chunks: Path, out: Path, model: str, write_chunks: WriteChunks
) -> None:
    write_chunks([*RECORDS, None])
    assert embed(chunks, out, models=model, quiet=True).ok
    counts = skip(chunks, out, model).chunks
    assert (counts.found, counts.embedded, counts.rejected) == (FOUND + 1, EMBEDDED, REJECTED + 1)


def test_only_the_exports_that_were_asked_for_are_listed(chunks: Path, out: Path, model: str) -> None:
    assert [each.kind for each in skip(chunks, out, model, exports="npy").exports] == ["npy"]


# journals of earlier versions


def test_of_an_earlier_version_the_points_file_has_target_and_vectors(chunks: Path, out: Path, model: str) -> None:
    edit_journal(out, as_of_an_earlier_version)
    skipped = skip(chunks, out, model)
    assert (skipped.chunks.found, skipped.chunks.embedded, skipped.chunks.rejected) == (EMBEDDED, EMBEDDED, 0)
    assert skipped.target_qdrant_collection == TARGET
    assert [each.dim for each in skipped.vectors] == [DIM]
    assert [each.kind for each in skipped.exports] == KINDS
    (warning,) = skipped.warnings
    assert "did not record how many records were rejected" in warning


def test_of_an_earlier_version_without_a_points_file_the_target_is_not_known(
    chunks: Path, out: Path, model: str
) -> None:
    edit_journal(out, as_of_an_earlier_version)
    skipped = skip(chunks, out, model, exports="npy")
    assert (skipped.chunks.embedded, skipped.target_qdrant_collection, skipped.vectors) == (EMBEDDED, None, [])


def test_a_points_file_that_is_damaged_does_not_keep_a_collection_from_being_skipped(
    chunks: Path, out: Path, model: str
) -> None:
    edit_journal(out, as_of_an_earlier_version)
    (out / "docs" / "chunks.parquet").write_bytes(b"damaged")
    assert skip(chunks, out, model).target_qdrant_collection is None


def test_the_next_run_that_is_not_skipped_completes_the_journal(chunks: Path, out: Path, model: str) -> None:
    edit_journal(out, as_of_an_earlier_version)
    assert embed(chunks, out, models=model, quiet=True).ok
    skipped = skip(chunks, out, model)
    assert (skipped.chunks.found, skipped.warnings) == (FOUND, [])


@pytest.mark.parametrize("content", ["[]", "17", '{"npy": []}', "{", ""])
def test_a_journal_that_is_none_means_no_exports(out: Path, content: str) -> None:
    CollectionOutput(out / "docs").export_journal.write_text(content)
    assert find_exports(out / "docs", ["npy"]) is None


def test_exports_of_different_points_are_mentioned(
    chunks: Path, out: Path, model: str, write_chunks: WriteChunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise StoppedError("the deadline")

    write_chunks(["other texts"])
    with monkeypatch.context() as patch:
        patch.setattr("ultimate_embedder.export.qdrant.atomic_folder", stop)
        assert not embed(chunks, out, models=model, quiet=True).ok
    skipped = skip(chunks, out, model)
    assert "of different chunks or vectors" in skipped.warnings[0]
    assert (skipped.chunks.embedded, [each.rows for each in skipped.exports]) == (1, [1, 1, EMBEDDED])


# status


def test_status_knows_what_a_skipped_collection_holds(
    chunks: Path, out: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    skip(chunks, out, model)
    capsys.readouterr()
    assert main(["status", str(out)]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.split()[:6] == ["docs", "tiny-bert", "float32", str(DISTINCT), "0", "1"]
    assert line.endswith("nothing")


def test_status_does_not_guess_about_passes_that_the_exports_are_not_made_of(
    chunks: Path, out: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    embed(chunks, out, models=str(tiny_model("mpnet", hidden=48, layers=1)), quiet=True)
    skip(chunks, out, model)
    capsys.readouterr()
    assert main(["status", str(out)]) == 0
    missing = {line.split()[1]: line.split()[4] for line in capsys.readouterr().out.splitlines()[1:]}
    assert missing == {"tiny-mpnet": "0", "tiny-bert": "?"}
