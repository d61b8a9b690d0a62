"""Nothing outside of the output is written, truncated or deleted: names and links that lead out of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from tests.support.uploads import upload
from ultimate_embedder import embed, open_output
from ultimate_embedder.config import hub_access
from ultimate_embedder.errors import OutputError, UploadError, UsageError
from ultimate_embedder.export.journal import read_export_journal, write_export_journal
from ultimate_embedder.output import LOCK_NAME, CollectionOutput, Output
from ultimate_embedder.report import RunSummary
from ultimate_embedder.verify import verify_output

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs POSIX links and names")
PRECIOUS = "precious"


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    return write_chunks(["one", "two"])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is none of our business, with a file."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file.txt").write_text(PRECIOUS)
    return folder


def run(chunks: Path, out: Path, **options: Any) -> RunSummary:
    return embed(
        chunks, out, models=[str(tiny_model("bert"))], devices="cpu", quiet=True, **{"exports": "npy", **options}
    )


def statuses(summary: RunSummary) -> dict[str, str | None]:
    return {each.collection: each.status for each in summary.collections}


def untouched(outside: Path) -> bool:
    return [(path.name, path.read_text()) for path in outside.iterdir()] == [("file.txt", PRECIOUS)]


# names of collections


def test_a_chunk_file_whose_name_leads_out_of_the_output_fails_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / ".._chunks.json"
    file.write_text('["a text"]')
    summary = run(file, tmp_path / "deep" / "out")
    [collection] = summary.collections
    assert (collection.status, collection.error) == ("failed", f"its name begins with a dot. Rename {file}.")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_a_bad_name_fails_alone(write_chunks: WriteChunks, tmp_path: Path) -> None:
    for name in ("summary.json", "Events.JSONL", "embedding_summary.json", "fine"):
        chunks = write_chunks(["a text"], collection=name)
    (write_chunks(["a text"], collection="cafe") / "cafe").rename(chunks / os.fsdecode(b"caf\xe9"))
    for _ in range(2):
        summary = run(chunks, tmp_path / "out")
        failed = {each.collection: each.error or "" for each in summary.collections if each.status == "failed"}
        assert statuses(summary)["fine"] == "completed"
        assert set(failed) == {"summary.json", "Events.JSONL", "embedding_summary.json", "caf\\udce9"}
        assert failed["summary.json"].startswith("its name is the name of a file that every output has. Rename ")
        assert "is not valid Unicode" in failed["caf\\udce9"]
        assert open_output(tmp_path / "out").summary == summary
        lines = (tmp_path / "out" / "events.jsonl").read_text("utf-8").splitlines()
        assert json.loads(lines[-1])["event"] == "RunFinished"


def test_an_output_whose_path_is_not_utf_8_is_written(chunks: Path, tmp_path: Path) -> None:
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    assert run(chunks, out, collections="docs,caf\udce9").collections[0].status == "skipped_missing"
    assert (open_output(out).summary or RunSummary.model_construct()).output.endswith("caf\\udce9")


@pytest.mark.parametrize(
    ("names", "way_out"),
    [
        (("Docs", "docs"), "one folder on a disk that ignores case"),
        (("a b", "a_b"), "the Qdrant collection a_b__tiny-bert"),
    ],
)
def test_collections_that_would_be_one_are_refused_before_work_begins(
    write_chunks: WriteChunks, tmp_path: Path, names: tuple[str, str], way_out: str
) -> None:
    for name in names:
        chunks = write_chunks(["a text"], collection=name)
    for dry_run in (False, True):
        with pytest.raises(UsageError) as caught:
            run(chunks, tmp_path / "out", dry_run=dry_run)
        assert f"{names[0]} and {names[1]}" in str(caught.value)
        assert way_out in str(caught.value)
        assert "--collections" in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert run(chunks, tmp_path / "out", collections=[names[1]]).ok


def test_a_summary_that_would_be_the_folder_of_a_collection_is_refused(chunks: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "out" / "docs", tmp_path / "out" / "Docs" / "s.json"):
        with pytest.raises(UsageError, match="--summary"):
            run(chunks, tmp_path / "out", summary=path)


@pytest.mark.parametrize("name", ["events.jsonl", "Events.jsonl"])
def test_a_summary_that_would_be_another_file_of_the_output_is_refused(chunks: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"--summary .* is the name of a file that every output has"):
        run(chunks, tmp_path / "out", summary=tmp_path / "out" / name)


@pytest.mark.parametrize("name", ["..", "../x", "summary.json", ""])
def test_an_output_gives_no_folder_for_a_name_that_leads_out_of_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="collection"):
        Output(tmp_path).collection(name)


@pytest.mark.parametrize("model", ["", "...", "___"])
def test_a_model_whose_vectors_would_be_a_hidden_file_is_refused(tmp_path: Path, model: str) -> None:
    with pytest.raises(UsageError, match="begins with a dot"):
        CollectionOutput(tmp_path).embeddings_of(model)


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "\x1b[2J"])
def test_a_name_in_qdrant_is_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--collection"):
        upload(tmp_path, "http://127.0.0.1:1", lambda event: None, collection=name)


def test_the_name_in_qdrant_that_a_file_asks_for_is_checked(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "out", exports="parquet")
    path = tmp_path / "out" / "docs" / "chunks.parquet"
    table = pq.read_table(path)
    schema = table.schema.with_metadata({**table.schema.metadata, b"target_qdrant_collection": b"../x"})
    pq.write_table(table.cast(schema), path)
    with pytest.raises(UploadError, match=r"is for a collection '../x', which begins with a dot. Give a name with"):
        upload(tmp_path / "out", "http://127.0.0.1:1", lambda event: None)


# the journal of the exports


@pytest.mark.parametrize("name", ["../../precious", "..", "/precious", "store", 7, None])
def test_a_journal_deletes_nothing_but_exports(chunks: Path, tmp_path: Path, name: Any) -> None:
    out = tmp_path / "out"
    run(chunks, out)
    (tmp_path / "precious").mkdir()
    shards = sorted((out / "docs" / "store").rglob("shard*"))
    path = out / "docs" / "store" / "exports.json"
    journal = read_export_journal(out / "docs")
    journal["npy"] |= {"name": name, "identity": "another"}
    for exports in ("parquet", "npy"):
        write_export_journal(out / "docs", journal)  # with a checksum that is right
        summary = run(chunks, out, exports=exports)
        assert summary.ok
        assert (tmp_path / "precious").is_dir()
        assert sorted((out / "docs" / "store").rglob("shard*")) == shards
        assert any("exports.json" in warning for warning in summary.collections[0].warnings)
    write_export_journal(out / "docs", journal)
    [damaged] = verify_output(out, 0, hub_access(offline=True)).damaged
    assert damaged.startswith(f"{path} is damaged ('npy': ")


# links


@pytest.mark.parametrize("name", ["events.jsonl", "summary.json", "report.html"])
def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(
    chunks: Path, outside: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).symlink_to(outside / "file.txt")
    summary = run(chunks, out)
    assert summary.ok
    assert untouched(outside)
    assert not (out / name).is_symlink()
    message = f"{out / name} was a link to {outside / 'file.txt'}. Links are replaced, not followed."
    assert message in summary.warnings


def test_a_link_in_the_place_of_the_lock_is_refused(chunks: Path, outside: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK_NAME).symlink_to(outside / "file.txt")
    with pytest.raises(OutputError, match="is a link"):
        run(chunks, tmp_path / "out")
    assert untouched(outside)


@pytest.mark.parametrize("place", ["docs", "docs/store", "docs/store/PASS", "docs/store/PASS/ledger.jsonl"])
def test_a_link_in_the_place_of_a_folder_fails_the_collection_and_nothing_is_written_through_it(
    write_chunks: WriteChunks, outside: Path, tmp_path: Path, place: str
) -> None:
    out = tmp_path / "out"
    run(write_chunks(["one"]), out)
    [stored] = (out / "docs" / "store").glob("*/pass.json")
    link = out / place.replace("PASS", stored.parent.name)
    link.rename(tmp_path / "moved")
    link.symlink_to(outside / "file.txt" if link.suffix else outside)
    write_chunks(["one"], collection="other")
    summary = run(write_chunks(["one", "two"]), out)
    assert statuses(summary) == {"docs": "failed", "other": "completed"}
    assert (summary.collections[0].error or "").startswith(f"{link} is a link to {outside}")
    assert untouched(outside)


def test_exports_replace_links_and_do_not_follow_them(chunks: Path, outside: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "docs"
    folder.mkdir(parents=True)
    (folder / "points.jsonl").symlink_to(outside / "file.txt")
    (folder / "qdrant").symlink_to(outside)
    leftover = folder / ".old.12345678.partial"
    leftover.symlink_to(outside)
    summary = run(chunks, tmp_path / "out", exports="jsonl,qdrant")
    assert summary.ok
    assert untouched(outside)
    # no run makes a link, so that one is not ours to delete
    assert [path for path in folder.iterdir() if path.is_symlink()] == [leftover]
    assert sum("Links are replaced, not followed." in warning for warning in summary.collections[0].warnings) == 2


def test_an_upload_does_not_write_through_a_link(chunks: Path, tmp_path: Path) -> None:
    run(chunks, tmp_path / "out", exports="parquet")
    (tmp_path / "out" / "docs").rename(tmp_path / "moved")
    (tmp_path / "out" / "docs").symlink_to(tmp_path / "moved")
    with pytest.raises(UploadError, match=r"docs is a link to .*moved\. Upload that folder by itself"):
        upload(tmp_path / "out", "http://127.0.0.1:1", lambda event: None)


def test_copies_of_an_output_have_nothing_that_a_link_points_to(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").symlink_to(outside / "file.txt")
    (tmp_path / "out" / "y").touch()
    assert [str(path) for path in Output(tmp_path / "out").files()] == ["y"]


def test_an_output_that_is_a_link_itself_is_fine(chunks: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    assert run(chunks, tmp_path / "out").ok
    assert (tmp_path / "real" / "docs" / "embeddings.npy").is_file()
