from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder.chunks.discover import find_collections, is_chunk_file
from ultimate_embedder.lock import hold_output
from ultimate_embedder.output import LOCK_NAME

NAMES = "*.json, *.jsonl, *.ndjson, *.csv, *.tsv, *.parquet, *.arrow or *.feather"


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('["a text"]', encoding="utf-8")
    return path


def found(root: Path, **options: Any) -> list[tuple[str, list[str]]]:
    collections = find_collections(root, **options).collections
    return [(each.name, [file.relative_to(each.folder).as_posix() for file in each.files]) for each in collections]


def refuse_to_list(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    scandir = os.scandir

    def refuse(path: Any = ".") -> Any:
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # pytest's own tmp_path is closed to other users
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    if not hasattr(os, "geteuid"):
        pytest.skip("needs POSIX permissions")
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)  # root may read everything
    try:
        yield
    finally:
        os.seteuid(0)


def test_each_sub_folder_is_a_collection(tmp_path: Path) -> None:
    put(tmp_path / "qdrant" / "a_chunks.json")
    put(tmp_path / "docling" / "a_chunks.json")
    assert found(tmp_path) == [("docling", ["a_chunks.json"]), ("qdrant", ["a_chunks.json"])]


def test_chunk_files_are_found_at_any_depth_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("z_chunks.json", "b/c/d/deep.jsonl", "a/first.parquet"):
        put(tmp_path / "docs" / name)
    assert found(tmp_path) == [("docs", ["a/first.parquet", "b/c/d/deep.jsonl", "z_chunks.json"])]


def test_files_directly_in_the_root_are_a_collection_named_after_it(tmp_path: Path) -> None:
    put(tmp_path / "handbook" / "a_chunks.json")
    assert found(tmp_path / "handbook") == [("handbook", ["a_chunks.json"])]


def test_the_current_folder_as_root_gives_its_real_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "handbook" / "a_chunks.json")
    monkeypatch.chdir(tmp_path / "handbook")
    assert found(Path()) == [("handbook", ["a_chunks.json"])]


def test_direct_files_and_sub_folders_are_separate_collections(tmp_path: Path) -> None:
    put(tmp_path / "all" / "direct.jsonl")
    put(tmp_path / "all" / "docs" / "nested.jsonl")
    assert found(tmp_path / "all") == [("all", ["direct.jsonl"]), ("docs", ["nested.jsonl"])]


def test_a_root_that_shares_its_name_with_a_sub_folder_is_told_apart(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "direct.jsonl")
    put(tmp_path / "docs" / "docs" / "nested.jsonl")
    assert found(tmp_path / "docs") == [("docs-root", ["direct.jsonl"]), ("docs", ["nested.jsonl"])]


def test_no_two_collections_share_a_name(tmp_path: Path) -> None:
    for name in ("direct.jsonl", "docs/a.jsonl", "docs-root/b.jsonl"):
        put(tmp_path / "docs" / name)
    names = [name for name, _ in found(tmp_path / "docs")]
    assert len(set(names)) == 3


@pytest.mark.parametrize(
    "name", ["a_chunks.json", "chunks.json", "A_CHUNKS.JSON", "a.jsonl", "a.ndjson", "a.parquet", "ä ö_chunks.json"]
)
def test_a_chunk_file_is_known_by_its_name(tmp_path: Path, name: str) -> None:
    assert is_chunk_file(put(tmp_path / name))


@pytest.mark.parametrize(
    "name",
    ["docs_processing_summary.json", "a.log", "._a_chunks.json", "a_chunks.json.bak", "a_chunks.txt", "chunks"],
)
def test_other_files_are_not_chunk_files(tmp_path: Path, name: str) -> None:
    assert not is_chunk_file(put(tmp_path / name))


def test_a_processing_summary_beside_chunk_files_is_left_alone(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "a_chunks.json")
    put(tmp_path / "docs" / "docs_processing_summary.json")
    assert found(tmp_path) == [("docs", ["a_chunks.json"])]


def test_a_folder_named_like_a_chunk_file_is_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "export.jsonl" / "part.jsonl")
    assert found(tmp_path) == [("docs", ["export.jsonl/part.jsonl"])]


def test_hidden_folders_are_not_entered(tmp_path: Path) -> None:
    put(tmp_path / ".git" / "a_chunks.json")
    put(tmp_path / "docs" / ".ipynb_checkpoints" / "a_chunks.json")
    put(tmp_path / "docs" / "a_chunks.json")
    assert found(tmp_path) == [("docs", ["a_chunks.json"])]


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "sub" / "a_chunks.json")
    (tmp_path / "docs" / "sub" / "loop").symlink_to(tmp_path / "docs")
    assert found(tmp_path) == [("docs", ["sub/a_chunks.json"])]


def test_a_link_to_itself_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "a_chunks.json")
    (tmp_path / "docs" / "self").symlink_to(tmp_path / "docs" / "self")
    assert found(tmp_path) == [("docs", ["a_chunks.json"])]


def test_a_linked_folder_is_read_once_however_many_links_lead_to_it(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere" / "a_chunks.json")
    docs = tmp_path / "chunks" / "docs"
    docs.mkdir(parents=True)
    (docs / "one").symlink_to(tmp_path / "elsewhere")
    (docs / "two").symlink_to(tmp_path / "elsewhere")
    [(_, files)] = found(tmp_path / "chunks")
    assert len(files) == 1


def test_a_folder_that_cannot_be_listed_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "docs" / "a_chunks.json")
    shut = put(tmp_path / "docs" / "shut" / "b_chunks.json").parent
    refuse_to_list(monkeypatch, shut)
    discovery = find_collections(tmp_path)
    assert found(tmp_path) == [("docs", ["a_chunks.json"])]
    assert discovery.warnings == (f"{shut}: skipped, as it cannot be listed (Permission denied)",)


def test_a_folder_without_permissions_is_warned_about(shared_folder: Path) -> None:
    put(shared_folder / "docs" / "a_chunks.json")
    shut = put(shared_folder / "docs" / "shut" / "b_chunks.json").parent
    shut.chmod(0)
    try:
        with ordinary_user():
            discovery = find_collections(shared_folder)
    finally:
        shut.chmod(0o755)
    assert discovery.warnings == (f"{shut}: skipped, as it cannot be listed (Permission denied)",)
    assert [collection.name for collection in discovery.collections] == ["docs"]


def test_files_of_a_folder_that_can_be_listed_but_not_entered_are_found_and_fail_no_other(shared_folder: Path) -> None:
    listed = put(shared_folder / "listed" / "a_chunks.json").parent
    put(shared_folder / "good" / "a_chunks.json")
    listed.chmod(0o644)
    try:
        with ordinary_user():
            assert found(shared_folder) == [("good", ["a_chunks.json"]), ("listed", ["a_chunks.json"])]
    finally:
        listed.chmod(0o755)


def test_chunk_files_that_lead_nowhere_are_found_so_that_they_are_reported(tmp_path: Path) -> None:
    put(tmp_path / "one" / "a_chunks.json")
    (tmp_path / "one" / "b_chunks.json").symlink_to("/nowhere/b_chunks.json")
    (tmp_path / "one" / "c_chunks.json").symlink_to("x" * 300)
    os.mkfifo(tmp_path / "one" / "d_chunks.json")
    assert found(tmp_path) == [("one", [f"{letter}_chunks.json" for letter in "abcd"])]


def test_a_root_that_cannot_be_listed_is_warned_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_list(monkeypatch, tmp_path)
    assert len(find_collections(tmp_path).warnings) == 1


def test_choosing_collections_keeps_the_warnings_about_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "docs" / "a_chunks.json")
    shut = put(tmp_path / "docs" / "shut" / "b_chunks.json").parent
    refuse_to_list(monkeypatch, shut)
    [warning] = find_collections(tmp_path, wanted=("docs",)).warnings
    assert warning == f"{shut}: skipped, as it cannot be listed (Permission denied)"


@pytest.mark.parametrize("output", ["out", "docs/out"])
def test_the_output_folder_is_not_entered(tmp_path: Path, output: str) -> None:
    put(tmp_path / "docs" / "a_chunks.json")
    put(tmp_path / output / "docs" / "vectors.jsonl")
    discovery = find_collections(tmp_path, skip=tmp_path / output)
    assert [len(collection.files) for collection in discovery.collections] == [1]
    assert discovery.warnings == (f"{tmp_path / output}: skipped, as it is the --output of this run",)


@pytest.mark.parametrize("old", ["old", "docs/old", "docs/deep/old"])
@pytest.mark.parametrize("wanted", [(), ("docs",)])
def test_the_output_of_an_earlier_run_is_not_entered_and_that_is_said(
    tmp_path: Path, old: str, wanted: tuple[str, ...]
) -> None:
    put(tmp_path / "docs" / "a_chunks.json")
    put(tmp_path / old / "docs" / "vectors.jsonl")
    with hold_output(tmp_path / old):
        pass
    discovery = find_collections(tmp_path, wanted)
    assert found(tmp_path) == [("docs", ["a_chunks.json"])]
    warning = f"{tmp_path / old}: skipped, as it is an output of ultimate-embedder ({LOCK_NAME} is in it)"
    assert discovery.warnings == ((warning,) if "docs" in old or not wanted else ())


def test_warnings_about_a_collection_are_not_those_about_one_with_a_longer_name(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "a_chunks.json")
    put(tmp_path / "docs2" / "a_chunks.json")
    put(tmp_path / "docs2" / "old" / LOCK_NAME)
    assert find_collections(tmp_path, wanted=("docs",)).warnings == ()


def test_a_root_is_told_apart_from_a_sub_folder_that_a_disk_may_take_for_it(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "direct.jsonl")
    put(tmp_path / "docs" / "Docs" / "nested.jsonl")
    assert [name for name, _ in found(tmp_path / "docs")] == ["docs-root", "Docs"]


def test_a_sub_folder_without_chunk_files_is_warned_about_with_the_naming_rule(tmp_path: Path) -> None:
    put(tmp_path / "docs" / "readme.txt")
    discovery = find_collections(tmp_path)
    assert discovery.collections == ()
    assert discovery.warnings == (f"{tmp_path / 'docs'}: skipped, as it has no chunk files (named {NAMES})",)


def test_an_empty_root_has_no_collections(tmp_path: Path) -> None:
    discovery = find_collections(tmp_path)
    assert (discovery.collections, discovery.missing, discovery.warnings) == ((), (), ())


@pytest.mark.parametrize(
    ("file", "name"), [("guide_chunks.json", "guide"), ("corpus.jsonl", "corpus"), ("_chunks.json", "_chunks")]
)
def test_a_single_file_is_a_collection(tmp_path: Path, file: str, name: str) -> None:
    assert found(put(tmp_path / file)) == [(name, [file])]


def test_only_the_wanted_collections_are_given(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path / name / "x.jsonl")
    assert [name for name, _ in found(tmp_path, wanted=("c", "a"))] == ["a", "c"]


def test_a_wanted_collection_that_is_missing_is_named_with_a_suggestion(tmp_path: Path) -> None:
    put(tmp_path / "Docling" / "a_chunks.json")
    discovery = find_collections(tmp_path, wanted=("doclng", "xyz"))
    assert discovery.collections == ()
    assert discovery.missing == ("doclng", "xyz")
    assert discovery.warnings == (
        "collection doclng does not exist. Did you mean Docling?",
        "collection xyz does not exist.",
    )


# nothing found


def test_nothing_found_names_what_is_there_by_suffix_most_first(tmp_path: Path) -> None:
    for name in ("a.log", "docs/b.log", "docs/deep/x_processing_summary.json", "docs/README", "docs/.hidden"):
        put(tmp_path / name)
    (tmp_path / "docs" / "folder.md").mkdir()
    put(tmp_path / ".git" / "config")
    assert find_collections(tmp_path).nothing_found == (
        f"no chunk files below {tmp_path}: looked for {NAMES}; "
        "found 2 .log, 1 .json, 1 without a suffix, which are not chunk files"
    )


def test_where_something_is_found_other_files_are_left_out_and_that_is_said_once(tmp_path: Path) -> None:
    for name in ("a.log", "docs/a_chunks.json", "docs/b.pdf", "docs/deep/c.pdf", "docs/.hidden", "code/b_chunks.json"):
        put(tmp_path / name)
    discovery = find_collections(tmp_path)
    assert discovery.nothing_found is None
    assert discovery.warnings == ("left out: 2 .pdf, 1 .log (not chunk files)",)
    assert find_collections(tmp_path, wanted=("docs",)).warnings == ("left out: 2 .pdf (not chunk files)",)
    assert find_collections(tmp_path, wanted=("code",)).warnings == ()


def test_other_files_are_counted_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultimate_embedder.chunks.left_out.MOST_COUNTED", 3)
    for number in range(10):
        put(tmp_path / f"{number}.log")
    message = find_collections(tmp_path).nothing_found or ""
    assert message.endswith("found 4 .log (not all were counted), which are not chunk files")


def test_of_many_suffixes_some_are_named(tmp_path: Path) -> None:
    for number in range(20):
        put(tmp_path / f"a.x{number:02d}")
    message = find_collections(tmp_path).nothing_found or ""
    assert message.count("1 .x") == 8
    assert "and 12 more, which are not chunk files" in message


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    refuse_to_list(monkeypatch, tmp_path / "docs")
    message = find_collections(tmp_path).nothing_found or ""
    assert message.endswith("found no files; cannot be listed: 1 of the folders")


def test_an_output_among_the_chunks_is_not_counted(tmp_path: Path) -> None:
    put(tmp_path / "out" / "docs" / "points.log")
    put(tmp_path / "out" / LOCK_NAME)
    assert (find_collections(tmp_path).nothing_found or "").endswith("found no files")
