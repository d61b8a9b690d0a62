"""Build steps of the documentation site: the pages that live in the root of the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
OUTSIDE = ("LICENSE", "benchmarks", "constraints.txt", "examples", "notebooks", "src", "tests")
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root, with links as they are on the site."""
    from mkdocs.structure.files import File

    root = Path(config.config_file_path).parent
    for source, target in PAGES.items():
        text = site_links((root / source).read_text(encoding="utf-8"), config.repo_url)
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let pages link to what is outside of `docs/` in the repository."""
    return site_links(markdown.replace("](../", "]("), config.repo_url)


def site_links(text: str, repository: str) -> str:
    """Links to pages of the site, and to the repository for what is not on it."""

    def replace(match: re.Match[str]) -> str:
        target, anchor = match[1].removeprefix(f"{repository}/blob/main/"), match[2] or ""
        if target in PAGES:
            return f"]({PAGES[target]}{anchor})"
        if target.startswith("docs/"):
            return f"]({target.removeprefix('docs/')}{anchor})"
        outside = target.split("/")[0] in OUTSIDE
        return f"]({repository}/blob/main/{target}{anchor})" if outside else f"]({match[1]}{anchor})"

    return LINK.sub(replace, text)
