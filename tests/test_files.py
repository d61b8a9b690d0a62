from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from ultimate_embedder.files import (
    atomic_file,
    atomic_folder,
    copy_folder,
    disk_bytes,
    file_sha256,
    folder_sha256,
    remove_leftovers,
    size_bytes,
    write_json,
)


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def make_folder(path: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content, encoding="utf-8")
    return path


def write_half_a_file(path: Path, error: type[BaseException]) -> None:
    with atomic_file(path) as file:
        file.write(b"half")
        raise error


def write_half_a_folder(path: Path, error: type[BaseException]) -> None:
    with atomic_folder(path) as temporary:
        make_folder(temporary, {"half": "1"})
        raise error


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.bin"
    with atomic_file(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" whole")
    assert path.read_bytes() == b"half whole"
    assert names(tmp_path) == ["deep", "deep/a.bin"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_write_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_half_a_file(tmp_path / "a.bin", error)
    assert names(tmp_path) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_half_a_file(tmp_path / "a.bin", KeyboardInterrupt)
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_write_replaces_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old and longer")
    with atomic_file(tmp_path / "a.bin") as file:
        file.write(b"new")
    assert (tmp_path / "a.bin").read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin"]


def test_two_writers_of_one_name_do_not_mix(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "a.bin") as first, atomic_file(tmp_path / "a.bin") as second:
        first.write(b"first")
        second.write(b"second")
    assert (tmp_path / "a.bin").read_bytes() == b"first"
    assert names(tmp_path) == ["a.bin"]


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "shard"
    with atomic_folder(path) as temporary:
        make_folder(temporary, {"a": "1", "sub/b": "2"})
        assert not path.exists()
    assert names(path) == ["a", "sub", "sub/b"]
    assert names(tmp_path / "deep") == ["shard", "shard/a", "shard/sub", "shard/sub/b"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_folder_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_half_a_folder(tmp_path / "shard", error)
    assert names(tmp_path) == []


def test_a_failed_folder_leaves_the_old_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "shard", {"old": "1"})
    with pytest.raises(KeyboardInterrupt):
        write_half_a_folder(tmp_path / "shard", KeyboardInterrupt)
    assert names(tmp_path) == ["shard", "shard/old"]


def test_a_folder_replaces_the_old_one_as_a_whole(tmp_path: Path) -> None:
    make_folder(tmp_path / "shard", {"old": "1", "both": "1"})
    with atomic_folder(tmp_path / "shard") as temporary:
        make_folder(temporary, {"new": "2", "both": "2"})
    assert names(tmp_path) == ["shard", "shard/both", "shard/new"]
    assert (tmp_path / "shard" / "both").read_text() == "2"


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    ours = {".a.npy.1234abcd.partial": "x", ".chunks.arrow.partial": "x", ".shard.99aabbcc.partial/f": "x"}
    theirs = {"a.npy": "x", "b.partial": "x", ".hidden": "x", "sub/c": "x", ".mine.partial": "x", ".b.99.partial": "x"}
    make_folder(tmp_path, ours | theirs)
    (tmp_path / ".c.1234abcd.partial").symlink_to(tmp_path / "sub")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == sorted([".c.1234abcd.partial", "sub", *theirs])


def test_a_copy_of_a_folder_can_be_written_to_and_keeps_holes(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "source", {"sub/b": "2"})
    with open(source / "holes", "wb") as file:
        file.write(b"begin")
        file.truncate(32 << 20)
        file.seek(20 << 20)
        file.write(b"middle")
    for path in (source / "sub" / "b", source / "sub", source):
        path.chmod(0o555 if path.is_dir() else 0o444)
    copy_folder(source, tmp_path / "copy")
    source.chmod(0o755)
    (source / "sub").chmod(0o755)
    assert folder_sha256(tmp_path / "copy") == folder_sha256(source)
    assert disk_bytes(tmp_path / "copy") <= 4 << 20
    assert (tmp_path / "copy" / "sub").stat().st_mode & 0o200
    assert (tmp_path / "copy" / "sub" / "b").stat().st_mode & 0o200


@pytest.mark.parametrize("tells_holes", [True, False])
def test_a_file_with_holes_has_the_checksum_and_the_copy_of_one_with_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells_holes: bool
) -> None:
    if not tells_holes:
        monkeypatch.delattr(os, "SEEK_DATA", raising=False)
    parts = {0: b"begin", (1 << 20) + 7: b"middle", 5 << 20: bytes(1 << 20) + b"end"}
    for number, size in enumerate((5, (6 << 20) + 3, (6 << 20) + 4, (8 << 20) + 1)):
        folders = [tmp_path / f"{number}-{name}" for name in ("holes", "zeros", "copy")]
        for folder in folders[:2]:
            folder.mkdir()
        with open(folders[0] / "file", "wb") as file:
            for start, content in parts.items():
                file.seek(start)
                file.write(content)
            file.truncate(size)
        (folders[1] / "file").write_bytes((folders[0] / "file").read_bytes())
        copy_folder(folders[0], folders[2])
        assert (folders[2] / "file").read_bytes() == (folders[0] / "file").read_bytes()
        for end_zeros in (False, True):
            assert len({folder_sha256(folder, end_zeros=end_zeros) for folder in folders}) == 1


def test_a_file_that_is_one_hole_is_copied_as_one(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with open(tmp_path / "source" / "file", "wb") as file:
        file.truncate(3 << 20)
    copy_folder(tmp_path / "source", tmp_path / "copy")
    assert (tmp_path / "copy" / "file").read_bytes() == bytes(3 << 20)
    assert disk_bytes(tmp_path / "copy") == 0


def test_leftovers_of_a_folder_that_is_not_there_are_no_error(tmp_path: Path) -> None:
    remove_leftovers(tmp_path / "nowhere")


def test_a_killed_write_is_a_leftover(tmp_path: Path) -> None:
    writing = atomic_file(tmp_path / "a.npy")
    writing.__enter__().write(b"half")
    assert len(names(tmp_path)) == 1
    remove_leftovers(tmp_path)
    assert names(tmp_path) == []


def test_json_is_written_as_readable_utf_8(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"name": "日本", "list": [1, 2]})
    content = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(content) == {"name": "日本", "list": [1, 2]}
    assert '"name": "日本"' in content
    assert content.endswith("}\n")


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    assert names(tmp_path) == ["a.json"]


def test_the_checksum_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    content = b"x" * ((1 << 20) + 7)
    (tmp_path / "a").write_bytes(content)
    assert file_sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_the_checksum_of_a_folder_does_not_depend_on_where_it_lies(tmp_path: Path) -> None:
    files = {"a": "1", "sub/b": "2"}
    assert folder_sha256(make_folder(tmp_path / "x", files)) == folder_sha256(make_folder(tmp_path / "y" / "z", files))


@pytest.mark.parametrize(
    "files", [{"a": "1", "sub/b": "3"}, {"a": "1", "sub/c": "2"}, {"a": "1", "b": "2"}, {"a": "1"}]
)
def test_the_checksum_of_a_folder_covers_names_and_contents(tmp_path: Path, files: dict[str, str]) -> None:
    first = make_folder(tmp_path / "x", {"a": "1", "sub/b": "2"})
    assert folder_sha256(first) != folder_sha256(make_folder(tmp_path / "y", files))


def test_the_checksum_of_a_folder_covers_zeros_at_the_end_of_files(tmp_path: Path) -> None:
    zeros = bytes(3 << 20)
    contents = [b"", zeros, zeros + b"\0", b"a" + zeros, b"a\0" + zeros, zeros + b"a", zeros + b"a" + zeros]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").write_bytes(content)
    for end_zeros in (False, True):
        found = {folder_sha256(tmp_path / str(number), end_zeros=end_zeros) for number in range(len(contents))}
        assert len(found) == len(contents), end_zeros


def test_the_size_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    make_folder(tmp_path, {"a": "123", "sub/b": "45"})
    assert size_bytes(tmp_path) == 5
    assert size_bytes(tmp_path / "a") == 3
