"""The page of a comparison: every number is one of the comparison, nothing is loaded, no text is markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.html.conftest import Page, in_summary
from ultimate_embedder import compare


@pytest.mark.parametrize("other", ["short_bert", "qwen"])
def test_every_number_on_the_page_is_that_of_the_comparison(
    bert: Path, other: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = tmp_path / "page.html"
    found = compare(bert, request.getfixturevalue(other), html=path).as_dict()
    page = Page(path.read_text("utf-8"))
    assert not page.open
    assert len(page.values) > 30
    for key, value, shown in page.values:
        assert str(in_summary(found, key)) == value, key
        assert shown
    assert page.tags.count("svg") == (2 if other == "short_bert" else 1)


def test_nothing_is_loaded_and_texts_are_escaped(bert: Path, short_bert: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    compare(bert, short_bert, html=path, neighbours=59)
    content = path.read_text("utf-8")
    page = Page(content)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "href") or name.startswith("on")]
    assert "default-src 'none'" in content
    assert "\u202e" not in content
    assert "\x1b" not in content


def test_a_notebook_shows_a_small_table(bert: Path, short_bert: Path) -> None:
    shown = compare(bert, short_bert)._repr_html_()
    assert "tiny-bert" in shown
    assert "of 10" in shown
