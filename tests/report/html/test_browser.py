"""The page as a browser shows it: nothing is loaded from anywhere, and nothing sticks out of a narrow window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Page, open_browser
from ultimate_embedder.output import Output
from ultimate_embedder.report import write_report
from ultimate_embedder.summary import DeviceSummary


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
    assert page.requests == [report]
    assert page.sticking_out() == []
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.sticking_out() == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 22, 26)" if dark else "rgb(251, 250, 248)")


def test_a_printed_page_is_light_and_complete(page: Page, report: str, tmp_path: Path) -> None:
    page.look(720, 900, dark=True)
    page.open(report)
    page.emulate_print()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.sticking_out() == []
    page.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
