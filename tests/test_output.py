"""The output folder: what it is called, and its summary, read and written by the schema."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import ultimate_embedder
from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, open_output
from ultimate_embedder.cli import main
from ultimate_embedder.config import RunConfig
from ultimate_embedder.errors import OutputError, UsageError
from ultimate_embedder.models import Encoder
from ultimate_embedder.options import make_config
from ultimate_embedder.output import Output
from ultimate_embedder.summary import CollectionSummary, RunOptions, RunSummary


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return make_config(
        tmp_path, tmp_path / "out", models="bge-m3=0.7,./mine", no_ensemble="a,b", cache_dir="cache", deadline="1h"
    )


def options_of(config: RunConfig) -> RunOptions:
    return RunOptions.model_validate(config.as_dict())


def written(out: Path, summary: RunSummary) -> dict[str, object]:
    Output(out).write_summary(summary)
    found: dict[str, object] = json.loads((out / "summary.json").read_text("utf-8"))
    return found


# the summary


def test_a_summary_comes_back_as_it_was_written(out: Path, config: RunConfig) -> None:
    summary = RunSummary(chunks="c", options=options_of(config), collections=[CollectionSummary(collection="docs")])
    Output(out).write_summary(summary)
    assert Output(out).read_summary() == summary


def test_options_are_written_as_plain_data_of_the_same_names(out: Path, config: RunConfig) -> None:
    assert written(out, RunSummary(options=options_of(config)))["options"] == json.loads(json.dumps(config.as_dict()))


def test_what_another_version_wrote_is_read(out: Path, config: RunConfig) -> None:
    plain = written(out, RunSummary(options=options_of(config), collections=[CollectionSummary(collection="docs")]))
    options = dict(config.as_dict())
    del options["token_cap"], options["hub"]
    plain |= {"options": {**options, "brand_new": 1}, "also_new": [2]}
    (out / "summary.json").write_text(json.dumps(plain, default=list))
    summary = Output(out).read_summary()
    assert summary is not None
    assert summary.options is not None
    assert summary.options.token_cap is None
    assert [(model.name, model.weight) for model in summary.options.models] == [("bge-m3", 0.7), ("./mine", 1.0)]


@pytest.mark.parametrize("nothing", [{}, None])
def test_a_summary_without_options_has_none(out: Path, nothing: object) -> None:
    plain = written(out, RunSummary()) | {"options": nothing}
    (out / "summary.json").write_text(json.dumps(plain))
    assert Output(out).read_summary() == RunSummary()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"schema_version": 7}',
        '{"collections": [{"status": "odd"}]}',
        '{"seconds": NaN}',
        '{"seconds": 1e999}',
        f'{{"seconds": 1{"0" * 400}}}',
    ],
)
def test_a_damaged_or_foreign_summary_is_an_error_with_path_and_way_out(out: Path, content: str) -> None:
    out.mkdir()
    (out / "summary.json").write_text(content)
    with pytest.raises(UsageError) as caught:
        Output(out).read_summary()
    assert str(caught.value).startswith(f"{out / 'summary.json'} is not a summary")
    assert "Run the same embed command again" in str(caught.value)


def test_a_summary_that_is_a_pipe_or_without_end_is_an_error_and_not_read(out: Path) -> None:
    out.mkdir(exist_ok=True)
    os.mkfifo(out / "summary.json")
    with pytest.raises(UsageError, match=r"summary\.json is damaged \(it is not a file\)"):
        Output(out).read_summary()
    (out / "summary.json").unlink()
    (out / "summary.json").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"summary\.json is damaged \(it is not a file\)"):
        Output(out).read_summary()


def test_a_killed_run_has_no_summary(out: Path) -> None:
    out.mkdir()
    assert Output(out).read_summary() is None


def test_the_summary_of_the_v5_script_is_read_where_there_is_no_other(out: Path) -> None:
    Output(out).write_summary(RunSummary(chunks="old"))
    (out / "summary.json").rename(out / "embedding_summary.json")
    assert Output(out).summary == RunSummary(chunks="old")
    Output(out).write_summary(RunSummary(chunks="new"))
    assert Output(out).summary == RunSummary(chunks="new")


def test_a_copy_is_written_also_where_the_output_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match=r"the summary cannot be written to .*out/summary.json"):
        Output(tmp_path / "out").write_summary(RunSummary(), tmp_path / "copy.json")
    assert (tmp_path / "copy.json").is_file()


def test_an_earlier_summary_never_stands_for_a_run_that_is_killed(
    write_chunks: WriteChunks, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [out / "summary.json", out / "embedding_summary.json", tmp_path / "copy.json"]
    for path in copies:
        Output(path.parent).write_summary(RunSummary(), path)
    seen: list[bool] = []

    def look(*_: object) -> None:
        seen.append(any(path.exists() for path in copies))
        raise ZeroDivisionError

    monkeypatch.setattr(Encoder, "forward", look)
    embed(write_chunks(["one"]), out, models=str(tiny_model("bert")), summary=copies[2], quiet=True)
    assert seen[0] is False


# opened from outside


def test_an_output_is_opened_by_its_folder(write_chunks: WriteChunks, out: Path) -> None:
    assert "open_output" in ultimate_embedder.__all__
    embed(write_chunks(["one"]), out, models=str(tiny_model("bert")), quiet=True)
    output = open_output(str(out))
    assert output.summary is not None
    assert output.summary.ok
    assert output.collections == ["docs"]
    assert output["docs"].points_file.is_file()
    assert len(output["docs"].passes) == 1
    with pytest.raises(UsageError, match=r"has no collection 'dogs'\. Its collections: docs"):
        output["dogs"]


def test_a_folder_that_is_no_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an output of ultimate-embedder"):
        open_output(tmp_path)


def test_the_manifest_of_an_output_of_the_v5_script_names_its_models(
    write_chunks: WriteChunks, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    embed(write_chunks(["one"]), out, models=str(tiny_model("bert")), quiet=True)
    (out / "summary.json").rename(out / "embedding_summary.json")
    assert main(["models", "manifest", str(out)]) == 0
    assert [entry["model"] for entry in json.loads(capsys.readouterr().out)] == ["tiny-bert"]
    (out / "embedding_summary.json").unlink()
    assert main(["models", "manifest", str(out)]) == 2
    assert "has no summary: its last run was killed" in capsys.readouterr().err


def test_leftovers_of_killed_runs_are_removed_everywhere_and_nothing_else(tmp_path: Path) -> None:
    ours = [
        ".summary.json.0123abcd.partial",
        "docs/.chunks.arrow.partial",
        "docs/.qdrant.0123abcd.partial/segments/x",
        "docs/embeddings/.m.npy.0123abcd.partial",
        "docs/store/.exports.json.0123abcd.partial",
        "docs/store/0011/.shard-00000.npy.0123abcd.partial",
        "docs/store/tokens-77/.tokens-00000.arrow.0123abcd.partial",
        "docs/store/tokens-77/tokens-00001.partial",
    ]
    theirs = ["docs/.draft.partial", "docs/notes.partial", "docs/store/tokens-77/tokens-00000.arrow", "mine/.x.partial"]
    for name in (*ours, *theirs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "docs" / ".upload.json.0123abcd.partial").touch()  # of an upload that is going on
    (tmp_path / "docs" / ".upload.json.4567abcd.partial").touch()
    os.utime(tmp_path / "docs" / ".upload.json.4567abcd.partial", (0, 0))
    Output(tmp_path).remove_leftovers()
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == sorted([*theirs, "docs/.upload.json.0123abcd.partial"])


def test_a_run_that_skips_a_collection_removes_leftovers_too(write_chunks: WriteChunks, tmp_path: Path) -> None:
    options: dict[str, Any] = {"models": [str(tiny_model("bert"))], "exports": ["npy"], "quiet": True}
    chunks = write_chunks([{"text": "a text"}])
    embed(chunks, tmp_path / "out", **options)
    left = tmp_path / "out" / "docs" / ".chunks.parquet.0123abcd.partial"
    left.touch()
    summary = embed(chunks, tmp_path / "out", skip_existing=True, **options)
    assert [each.status for each in summary.collections] == ["skipped_existing"]
    assert not left.exists()
