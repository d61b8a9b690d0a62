"""A run on the CPU whose page has something of everything, and a log of a long run that was never made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed

HOSTILE = '<script src="http://x/"></script><b onmouseover=alert(1)>\'"&'
LONG = "This text has a lot more letters than the model is allowed to see. " * 3
RECORDS: list[Any] = [
    *({"text": f"text {number}", "metadata": {"chunk_id": f"chunk-{number}"}} for number in range(40)),
    {"text": LONG, "metadata": {"chunk_id": f"{HOSTILE}\u202e\x1b[31m"}},
    {"text": "a duplicate id", "metadata": {"chunk_id": "chunk-0"}},
    {"text": "   "},
    {HOSTILE: "no text"},
]


class Page(HTMLParser):
    """What a browser would see of a page: elements, attributes, words, and values with their places in the summary."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.values: list[tuple[str, str, str]] = []
        """Place in the summary, value, and how it is shown."""
        self.open: list[str] = []
        self.words = ""
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "path"):
            self.open.append(tag)
        if "data-key" in given:
            self.values.append((given["data-key"] or "", given["data-value"] or "", ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += data
        if self.values and not self.values[-1][2]:
            key, value, _ = self.values[-1]
            self.values[-1] = (key, value, data)


def in_summary(summary: Any, key: str) -> Any:
    """The value at a place such as `collections.*.chunks.found`: a star adds up, # counts."""
    value = summary
    words = key.split(".")
    for index, word in enumerate(words):
        if word == "*":
            return sum(in_summary(each, ".".join(words[index + 1 :])) for each in value)
        value = len(value) if word == "#" else value[int(word)] if word.isdigit() else value[word]
    return value


def write_lines(path: Path, events: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(event) + "\n" for event in events), "utf-8")


def snapshot(device: str, used: int) -> dict[str, Any]:
    return {
        "device": device,
        "total_bytes": 160_000_000,
        "free_bytes": 160_000_000 - used,
        "allocated_bytes": used,
        "reserved_bytes": used,
        "peak_bytes": used,
        "peak_reserved_bytes": used + 1_000_000,
        "external_bytes": 0,
        "context_bytes": 0,
        "ceiling_bytes": 150_000_000,
    }


def batch(index: int, at: float, model: str = "tiny", device: str = "simulated:0", **more: Any) -> dict[str, Any]:
    """A batch as `events.jsonl` has it."""
    return {
        "event": "BatchEncoded",
        "collection": "docs",
        "timestamp": at,
        "model": model,
        "model_pass": 0,
        "batch_index": index,
        "device": device,
        "dtype": "float16",
        "rows": 30 + index % 7,
        "texts": 30 + index % 7,
        "planned_rows": 40,
        "tokens": 1000 + index % 11,
        "padded_tokens": 1100,
        "longest": 64,
        "bad_rows": 0,
        "packed": False,
        "fp32_rows": 0,
        "predicted_bytes": 0,
        "measured_bytes": 0,
        "wait_seconds": 0.0,
        "forward_seconds": 0.5,
        "memory_before": snapshot(device, 50_000_000),
        "memory": snapshot(device, 60_000_000 + index % 1000),
        **more,
    }


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run with rejected, truncated and duplicate chunks, a failed collection and one without chunks."""
    root = tmp_path_factory.mktemp("report")
    for name, records in (("docs", RECORDS), ("broken <i>", [" "]), ("empty", [])):
        (root / "chunks" / name).mkdir(parents=True)
        (root / "chunks" / name / "a_chunks.json").write_text(json.dumps(records), encoding="utf-8")
    embed(root / "chunks", root / "out", models=[str(tiny_model("bert"))], max_tokens=32, quiet=True)
    return root / "out"
