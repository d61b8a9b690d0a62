"""`docs/api.md` follows the docstrings."""

from __future__ import annotations

from pathlib import Path

import ultimate_embedder
from ultimate_embedder.report.api_page import NAMES, api_page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_in_the_docs_is_current() -> None:
    assert (DOCS / "api.md").read_text("utf-8") == api_page(), "run 'make generated'"


def test_every_public_name_is_on_it() -> None:
    page = api_page()
    for name in {*ultimate_embedder.__all__} - {"__version__"}:
        assert f"## {name}\n" in page or f"{name}\n" in page or f" {name} " in page, name
    assert set(NAMES) <= set(ultimate_embedder.__all__)
