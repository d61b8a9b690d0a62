from __future__ import annotations

import pytest

from ultimate_embedder.names import name_problem, same_name


@pytest.mark.parametrize("name", ["docs", "my docs", "Qt for Python", "1.0", "文档", "a-b_c", "naïve", "emoji 🙂"])
def test_ordinary_names_are_accepted(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        (".", "begins with a dot"),
        ("..", "begins with a dot"),
        (".hidden", "begins with a dot"),
        ("../../precious", "begins with a dot"),
        ("a/b", "contains /"),
        ("/etc/passwd", "contains /"),
        ("a\\b", "contains \\"),
        ("c:b", "begins with a drive of Windows"),
        ("a\0b", "contains a control character, or is not valid Unicode"),
        ("a\x1b[31mb", "contains a control character, or is not valid Unicode"),
        ("a\u202eb", "contains a control character, or is not valid Unicode"),
        ("caf\udce9", "contains a control character, or is not valid Unicode"),
        ("é" * 101, "is longer than 200 bytes"),
        ("NUL", "is the name of a device on Windows"),
        ("aux.npy", "is the name of a device on Windows"),
    ],
)
def test_names_that_are_no_file_names_are_refused(name: str, problem: str) -> None:
    assert name_problem(name) == problem


def test_a_reserved_name_is_refused_in_every_spelling_that_is_one_file() -> None:
    assert name_problem("Summary.JSON", ["summary.json"]) == "is the name of a file that every output has"


def test_names_that_are_one_file_on_some_disks_are_the_same() -> None:
    assert same_name("Docs") == same_name("docs.") == same_name("DOCS")
    assert same_name("nai\u0308ve") == same_name("na\u00efve")
    assert same_name("docs") != same_name("docs2")
