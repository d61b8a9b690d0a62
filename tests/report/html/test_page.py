"""The page of real runs: its numbers are those of the summary, and no text from outside is more than text."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.report.html.conftest import HOSTILE, Page, in_summary
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.api import run_and_report
from ultimate_embedder.cli import main
from ultimate_embedder.events import Event, RunFinished
from ultimate_embedder.options import make_config
from ultimate_embedder.output import Output
from ultimate_embedder.report import try_report, write_report
from ultimate_embedder.report.html.page import make_page
from ultimate_embedder.summary import CollectionSummary, MitigationSummary, RejectionGroup, RunSummary

LOADING = ("src", "href", "srcset", "action", "data", "poster", "xlink:href", "background")


def page_of(output: Path) -> Page:
    return Page((output / "report.html").read_text("utf-8"))


def as_shown(words: str) -> float | None:
    """The number in words such as `1,204` or `12.5 s`."""
    found = re.fullmatch(r"([\d,]+(?:\.\d+)?)( s)?", words)
    return float(found[1].replace(",", "")) if found else None


def assert_numbers_are_those_of_the_summary(output: Path) -> Page:
    page, summary = page_of(output), json.loads((output / "summary.json").read_text("utf-8"))
    for key, value, shown in page.values:
        known = in_summary(summary, key)
        assert value == str(known), key
        if (number := as_shown(shown)) is not None:
            digits = len(shown.partition(".")[2].rstrip(" s"))
            assert number == pytest.approx(known, abs=0.51 * 10**-digits), key
    return page


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the output, elsewhere."""
    return shutil.copytree(finished, tmp_path / "copy")


def test_every_number_is_that_of_the_summary(finished: Path) -> None:
    page = assert_numbers_are_those_of_the_summary(finished)
    shown = {re.sub(r"\d+", "N", key) for key, _, _ in page.values}
    assert {
        "collections.*.chunks.found",
        "collections.*.chunks.embedded",
        "collections.N.chunks.rejected",
        "collections.N.rejected_by_reason.N.records",
        "collections.N.passes.N.tokens",
        "collections.N.passes.N.tokens_lost",
        "collections.N.passes.N.lost_most.N.tokens_lost",
        "collections.N.models.N.size_bytes",
        "collections.N.exports.N.rows",
        "seconds",
    } <= shown


def test_text_from_outside_is_only_text(finished: Path) -> None:
    content, page = (finished / "report.html").read_text("utf-8"), page_of(finished)
    assert HOSTILE in page.words
    assert "broken <i>" in page.words
    assert not {"script", "iframe", "img", "link", "object", "form"} & set(page.tags)
    assert "onmouseover" not in dict(page.attributes)
    assert "\\u202e\\x1b[31m" in page.words
    assert not {"\u202e", "\x1b"} & set(content)
    assert page.open == []


def test_nothing_leaves_the_page(finished: Path) -> None:
    content, page = (finished / "report.html").read_text("utf-8"), page_of(finished)
    assert not {name for name, _ in page.attributes if name in LOADING or name.startswith("on")}
    assert not re.search(r"url\(|@import|@font-face", content)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert not [value for name, value in page.attributes if "://" in (value or "") and name != "title"]


def test_what_failed_and_was_skipped_is_named(finished: Path) -> None:
    words = page_of(finished).words
    assert "1 of 3 collections failed" in words
    assert "broken <i> failed." in words
    assert "all 1 records were rejected" in words
    assert "skipped no chunks" in words
    assert "have no vector" in words
    assert "does not see the end of 1 chunk of docs" in words
    assert "1 chunk of docs had the id of an earlier one" in words


def test_a_report_is_made_anew_from_a_copied_folder(finished: Path, copied: Path, capsys: Any) -> None:
    before = (copied / "report.html").read_bytes()
    (copied / "report.html").unlink()
    assert main(["report", str(copied)]) == 0
    assert capsys.readouterr().out == f"{copied / 'report.html'}\n"
    assert (copied / "report.html").read_bytes() == before


def test_a_run_that_was_killed_has_a_report_of_its_events(copied: Path) -> None:
    summary = Output(copied).summary
    assert summary is not None
    (copied / "summary.json").unlink()
    lines = (copied / "events.jsonl").read_bytes().splitlines(keepends=True)
    exported = next(index for index, line in enumerate(lines) if b'"ExportStarted"' in line)
    (copied / "events.jsonl").write_bytes(b"".join(lines[:exported]) + lines[exported][:20])
    page = page_of(write_report(Output(copied)).parent)
    assert "texts encoded in" in page.words
    assert "Not ended" in page.words
    assert "The end of the run is not recorded" in page.words
    assert "1 line of events.jsonl cannot be read" in page.words
    values = {key: value for key, value, _ in page.values}
    [docs] = [index for index, each in enumerate(summary.collections) if each.collection == "docs"]
    assert values[f"collections.{docs}.passes.0.tokens"] == str(summary.collections[docs].passes[0].tokens)
    assert values[f"collections.{docs}.chunks.embedded"] == str(summary.collections[docs].chunks.embedded)
    assert values[f"collections.{docs}.status"] == "None"


@pytest.mark.parametrize(
    "content", [None, b"", b"\x00\xff" * 5000, b'{"event": 1}\n[]\n{"event": "X", "timestamp": NaN}\n']
)
def test_without_events_the_page_is_made_from_the_summary_and_says_so(copied: Path, content: bytes | None) -> None:
    (copied / "events.jsonl").unlink()
    if content is not None:
        (copied / "events.jsonl").write_bytes(content)
    assert try_report(Output(copied)) is None
    page = assert_numbers_are_those_of_the_summary(copied)
    assert "events.jsonl is missing or cannot be read" in page.words
    assert "Throughput" not in page.words


def test_events_with_fields_of_the_wrong_kind_are_counted_and_left_out(copied: Path) -> None:
    lines = (copied / "events.jsonl").read_text("utf-8").splitlines()
    batch = json.loads(next(line for line in lines if '"BatchEncoded"' in line))
    wrong = [
        json.dumps({**batch, field: value}) for field, value in (("tokens", "many"), ("memory", 3), ("rows", 1e999))
    ]
    (copied / "events.jsonl").write_text("\n".join([*lines[:-1], *wrong, lines[-1], ""]), "utf-8")
    assert try_report(Output(copied)) is None
    assert "3 lines of events.jsonl cannot be read" in assert_numbers_are_those_of_the_summary(copied).words


def test_an_empty_folder_has_nothing_to_report(tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err.count("Give the --output of an earlier embed.") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_a_warning(write_chunks: WriteChunks, tmp_path: Path) -> None:
    config = make_config(write_chunks(["a text"]), tmp_path / "out", models=str(tiny_model("bert")), exports="npy")
    page = tmp_path / "out" / "report.html"

    def block(event: Event) -> None:
        if isinstance(event, RunFinished):
            page.mkdir()

    summary = run_and_report(config, quiet=True, watch=[block])
    assert summary.ok
    assert summary.warnings == [f"{page} cannot be written: Is a directory"]
    assert Output(tmp_path / "out").summary == summary


def test_a_folder_in_the_place_of_the_page_is_kept(write_chunks: WriteChunks, tmp_path: Path) -> None:
    (tmp_path / "out" / "report.html" / "store").mkdir(parents=True)
    assert embed(
        write_chunks(["a text"]), tmp_path / "out", models=str(tiny_model("bert")), quiet=True, exports="npy"
    ).ok
    assert (tmp_path / "out" / "report.html" / "store").is_dir()


def test_no_report_writes_none_and_removes_that_of_the_run_before(
    write_chunks: WriteChunks, tmp_path: Path, capsys: Any
) -> None:
    words = [str(write_chunks(["a text"])), "-o", str(tmp_path / "out"), "--models", str(tiny_model("bert")), "-q"]
    assert main(["embed", *words, "--export", "npy"]) == 0
    assert f"\nreport: {tmp_path / 'out' / 'report.html'}\n" in capsys.readouterr().out
    page = page_of(tmp_path / "out")
    assert f"ultimate-embedder embed {tmp_path / 'chunks'} -o {tmp_path / 'out'}" in page.words
    assert main(["embed", *words, "--export", "npy", "--no-report"]) == 0
    assert not (tmp_path / "out" / "report.html").exists()


def test_a_page_stays_small_however_much_went_wrong() -> None:
    noise = "x" * 10_000
    group = RejectionGroup(records=1, reason=noise, file=noise, position=0)
    mitigations = [
        MitigationSummary(
            type="oom_bisect", timestamp=float(index), details={"device": noise, "reason": f"{index} {noise}"}
        )
        for index in range(50)
    ]
    collections = [
        CollectionSummary(
            collection=f"{index}-{noise}",
            status="failed",
            error=noise,
            warnings=[noise] * 10,
            rejected_by_reason=[group] * 10,
            mitigations=mitigations if index < 20 else [],
        )
        for index in range(500)
    ]
    page = make_page(RunSummary(collections=collections), None)
    assert len(page) < 1_000_000
    assert "And 400 more; summary.json lists all." in Page(page).words
