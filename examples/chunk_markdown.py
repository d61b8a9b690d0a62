"""A small chunker: splits Markdown files at their headings and writes the chunk files that `embed` reads.

    python examples/chunk_markdown.py README.md docs --output chunks/handbook

It is made for the demo. Use your own chunker for real documents.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST_CHUNK = 700  # characters; short enough for a model of 256 tokens


def chunk_file(path: Path) -> Iterator[dict[str, Any]]:
    """Yield one chunk per section; long sections are split between paragraphs."""
    section_path: list[str] = []
    number = 0
    for section in re.split(r"(?m)^(?=#{1,4} )", path.read_text("utf-8")):
        if heading := re.match(r"(#{1,4}) (.+)", section):
            section_path = [*section_path[: len(heading[1]) - 1], heading[2].strip()]
        for text in split_section(section):
            yield {
                "text": text,
                "metadata": {
                    "chunk_id": f"{path.stem}-{number:04d}",
                    "source_file": path.as_posix(),
                    "section_path": list(section_path),
                },
            }
            number += 1


def split_section(section: str) -> Iterator[str]:
    """Join paragraphs up to the longest chunk."""
    text = ""
    paragraphs = re.split(r"\n{2,}", section.strip())
    if len(paragraphs) == 1 and re.fullmatch(r"#+ .+", paragraphs[0]):
        return  # a heading without text
    for paragraph in paragraphs:
        if text and len(text) + len(paragraph) > LONGEST_CHUNK:
            yield text
            text = ""
        text = f"{text}\n\n{paragraph}" if text else paragraph
    if text:
        yield text


def main() -> None:
    """Chunk the given Markdown files, and those in the given folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument("--output", required=True, type=Path)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    total = 0
    for source in options.sources:
        for path in sorted(source.rglob("*.md")) if source.is_dir() else [source]:
            chunks = list(chunk_file(path))
            target = options.output / f"{path.stem}_chunks.json"
            target.write_text(json.dumps(chunks, indent=2, ensure_ascii=False), "utf-8")
            total += len(chunks)
    print(f"{total} chunks in {options.output}")


if __name__ == "__main__":
    main()
