"""The pages of the documentation: every test that they name exists, every link resolves, every page can be reached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SPECIFICATION = ROOT / "docs" / "specification.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
SOURCE = "https://github.com/ultimate-embedder/ultimate-embedder"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def named_tests() -> list[tuple[str, str]]:
    return sorted(set(NAMED_TEST.findall(SPECIFICATION.read_text("utf-8"))))


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Path and heading of each link that does not leave the repository; those of the README are absolute."""
    for link in LINK.findall(page.read_text("utf-8").replace(f"]({SOURCE}/blob/main/", "](")):
        if "://" not in link:
            path, _, heading = link.partition("#")
            yield path, heading


def headings(page: Path) -> set[str]:
    """The headings of a page as they are written in links."""
    found = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


def test_the_page_names_tests() -> None:
    assert len(named_tests()) > 100


def test_every_test_that_the_page_names_exists() -> None:
    for file, name in named_tests():
        assert name.startswith("test_")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{file} has no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_resolves(page: Path) -> None:
    for path, heading in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not heading or heading in headings(target), f"{page.name} links to {path}#{heading}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_is_linked_from_the_readme_or_another_page(page: Path) -> None:
    targets = {(other.parent / path).resolve() for other in PAGES if other != page for path, _ in links(other)}
    assert page.resolve() in targets
