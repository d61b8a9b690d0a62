"""A small chunker: cuts Markdown files at their headings and writes the chunk files that `embed` reads.

    python examples/chunk_markdown.py README.md docs --output chunks/handbook

It exists so that the demo has something to embed. Bring your own chunker for real documents.
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
    """Yield one chunk a section; long sections are cut between paragraphs."""
    section_path: list[str] = []
    number = 0
    for section in re.split(r"(?m)^(?=#{1,4} )", path.read_text("utf-8")):
        if heading := re.match(r"(#{1,4}) (.+)", section):
            section_path = [*section_path[: len(heading[1]) - 1], heading[2].strip()]
        for text in cut(section):
            yield {
                "text": text,
                "metadata": {
                    "chunk_id": f"{path.stem}-{number:04d}",
                    "source_file": path.as_posix(),
                    "section_path": list(section_path),
                },
            }
            number += 1


def cut(section: str) -> Iterator[str]:
    """Join paragraphs until the next one would make the chunk too long."""
    text = ""
    paragraphs = re.split(r"\n{2,}", section.strip())
    if len(paragraphs) == 1 and re.fullmatch(r"#+ .+", paragraphs[0]):
        return  # a heading and nothing below it
    for paragraph in paragraphs:
        if text and len(text) + len(paragraph) > LONGEST_CHUNK:
            yield text
            text = ""
        text = f"{text}\n\n{paragraph}" if text else paragraph
    if text:
        yield text


def main() -> None:
    """Chunk every Markdown file that is named, or lies in a folder that is named."""
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
