"""The page as a browser shows it: nothing is loaded from anywhere, and nothing sticks out of a narrow window."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Page, open_browser
from ultimate_embedder.output import Output
from ultimate_embedder.report import write_report
from ultimate_embedder.summary import DeviceSummary

# elements that stick out on the right, unless something around them scrolls
STICKING_OUT = """
(() => {
  const scrolls = element => { for (let e = element; e; e = e.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX)) return true; return false };
  const width = document.documentElement.clientWidth;
  const out = [...document.querySelectorAll('body *')].filter(
    e => e.getClientRects().length && e.getBoundingClientRect().right > width + 1 && !scrolls(e));
  if (document.documentElement.scrollWidth > width) out.push(document.documentElement);
  return out.slice(0, 5).map(e => e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 60));
})()
"""
OPEN_ALL = "document.querySelectorAll('details').forEach(each => { each.open = true })"
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page with names that are long, and have no place to break."""
    output = Output(shutil.copytree(finished, tmp_path_factory.mktemp("browser") / "out"))
    summary = output.read_summary()
    assert summary is not None
    for each in summary.collections:
        each.collection += "_x" * 120
        each.error = "e" * 300
        each.warnings.append("w" * 300)
    summary.devices.append(DeviceSummary(device="d" * 80, total_bytes=1, ceiling_bytes=1, ceiling_reason="r" * 200))
    output.write_summary(summary, None)
    return write_report(output).as_uri()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [380, 1400])
def test_nothing_leaves_the_page_and_nothing_sticks_out(page: Page, report: str, width: int, dark: bool) -> None:
    page.requests.clear()
    page.look(width, 900, dark=dark)
    page.open(report)
    assert page.evaluate(STICKING_OUT) == []
    page.evaluate(OPEN_ALL)
    assert page.evaluate(STICKING_OUT) == []
    assert page.evaluate(BACKGROUND) == ("rgb(20, 22, 26)" if dark else "rgb(251, 250, 248)")
    assert (page.requests, page.complaints) == ([report], [])


def test_a_printed_page_is_light_and_fits_the_paper(page: Page, report: str) -> None:
    page.look(720, 1000)
    page.open(report)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    assert page.evaluate(STICKING_OUT) == []
    page.call("Emulation.setEmulatedMedia", media="", features=[])
    printed = page.call("Page.printToPDF", printBackground=True)["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
