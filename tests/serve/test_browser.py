"""The pages in a real browser, from a real server: live while a run goes on, and search."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.conftest import running_server
from tests.support.browser import Page, open_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with open_browser() as page:
        yield page


def _inside(page: Page, address: str) -> bool:
    return all(each.startswith((address, "about:")) for each in page.requests)


def test_the_live_page_follows_a_run_and_another_one(browser: Page, served_output: Path, tmp_path: Path) -> None:
    lines = (served_output / "events.jsonl").read_bytes().splitlines(keepends=True)
    log = tmp_path / "events.jsonl"
    (tmp_path / ".ultimate-embedder.lock").touch()
    log.write_bytes(b"".join(lines[: len(lines) // 3]))
    with running_server(tmp_path) as address:
        browser.look(1400, 900)
        browser.open(address)
        browser.wait_for("document.getElementById('connection').textContent === 'live'")
        assert browser.evaluate("document.getElementById('timeline').textContent") != ""
        with open(log, "ab") as file:
            file.writelines(lines[len(lines) // 3 :])
        browser.wait_for("document.getElementById('head').textContent.includes('Finished')")
        assert browser.evaluate("document.title").startswith("finished")
        shown = browser.evaluate("document.querySelectorAll('#passes tbody tr').length")
        assert shown == 4
        log.write_bytes(b"".join(lines[:1]))
        browser.wait_for("document.getElementById('passes').closest('section').hidden")
        for width in (380, 1400):
            browser.look(width, 900, dark=width == 380)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.complaints == []
        assert _inside(browser, address)
    browser.wait_for("document.getElementById('connection').textContent.includes('does not answer')")


def test_the_search_page_asks_and_shows(browser: Page, served_output: Path) -> None:
    browser.requests.clear()
    browser.complaints.clear()
    with running_server(served_output) as address:
        browser.open(f"{address}search")
        browser.evaluate(
            """document.querySelector("[name=q]").value = "<b>fox</b>";
            for (const box of document.querySelectorAll("[name=using]")) box.checked = box.value !== "all vectors";
            document.querySelector("button").click();"""
        )
        browser.wait_for("document.querySelectorAll('.column article').length > 2")
        assert browser.evaluate("document.querySelectorAll('.column').length") == 3
        assert "using=tiny-bert" in browser.evaluate("location.search")
        assert browser.evaluate("document.querySelectorAll('#results script, #results img, #results b b').length") == 0
        browser.look(380, 900)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 380
        assert browser.complaints == []
        assert _inside(browser, address)
