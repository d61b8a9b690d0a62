"""Any text as a name, and on its way to a terminal."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath

from hypothesis import given
from hypothesis import strategies as st

from ultimate_embedder.files import safe_name
from ultimate_embedder.names import name_problem, same_name
from ultimate_embedder.output import collection_name_problem, export_name_problem
from ultimate_embedder.terminal import is_hidden, printable, valid_unicode

ANY = st.text(st.characters(categories=None), max_size=30)
PARTS = ["..", ".", "/", "\\", "\0", "a", "c:", "summary.json", "store", "\x1b", "\udce9", " "]
ODD = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)


@given(ANY | ODD)
def test_a_name_without_a_problem_is_one_file_below_its_folder_on_every_system(name: str) -> None:
    for problem in (name_problem(name), collection_name_problem(name), export_name_problem(name)):
        if problem is None:
            for kind in (PurePosixPath, PureWindowsPath):
                assert (kind("out") / name).parent == kind("out")
            assert "\0" not in name
            assert name.encode()


@given(ANY | ODD)
def test_what_is_shown_is_harmless_and_shown_again_the_same(text: str) -> None:
    for shown in (printable(text), *printable(text, lines=True).split("\n")):
        assert not any(map(is_hidden, shown))
    assert printable(printable(text)) == printable(text)
    assert valid_unicode(text).encode().decode() == valid_unicode(text)


@given(ANY | ODD, ANY | ODD)
def test_names_that_differ_only_in_case_are_the_same(one: str, other: str) -> None:
    if one.lower() == other.lower():
        assert same_name(one) == same_name(other)
    assert same_name(same_name(one)) == same_name(one)


@given(ANY | ODD)
def test_a_safe_name_has_no_separators(word: str) -> None:
    assert not {"/", "\\", "\0"} & set(safe_name(word))
