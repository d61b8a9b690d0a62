"""What is printed: nothing from outside steers the terminal, and no stream that cannot show it fails a run."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

from ultimate_embedder.terminal import printable, show, valid_unicode, without_user, write_line

SOURCE = Path(__file__).resolve().parents[1] / "src" / "ultimate_embedder"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [red] :smile: ünï 表 🙂 →", "plain [red] :smile: ünï 表 🙂 →"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("one\r\ntwo\tthree", "one\\r\\ntwo\\tthree"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202egnp.exe\u2028", "\\u202egnp.exe\\u2028"),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_no_text_can_forge_a_line_of_ours() -> None:
    assert printable("a\nerror: b\n\n", lines=True) == "a\n  | error: b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see http://user:secret@host:6333/x", "see http://host:6333/x"),
        ("http://user:se@cret@host", "http://host"),
        ("https://token@host and ftp://a:b@c", "https://host and ftp://c"),
        ("http://host/a@b", "http://host/a@b"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_urls_are_shown_without_user_and_password(text: str, shown: str) -> None:
    assert without_user(text) == printable(text) == shown


def test_names_of_files_become_valid_unicode_and_nothing_else() -> None:
    assert valid_unicode("tab\t ü caf\udce9") == "tab\t ü caf\\udce9"


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\xfc \\u2192\n"), ("cp1252", "ü \\u2192\n")])
def test_a_stream_that_cannot_show_a_character_gets_an_escape(encoding: str, shown: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict", newline="\n")
    show("ü →", stream)
    stream.seek(0)
    assert stream.read() == shown


def test_a_closed_stream_is_no_error() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        show("text", stream)
        write_line("text", stream)


def test_everything_is_printed_in_one_place() -> None:
    for path in SOURCE.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        prints = [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]
        assert not prints or path.name == "terminal.py", path
