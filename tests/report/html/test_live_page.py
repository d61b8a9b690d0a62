"""The live page: follows a log, shows what events say, and nothing of them as markup."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.live.test_state import START, batch, lease, started
from ultimate_embedder import events
from ultimate_embedder.output import Output
from ultimate_embedder.report.html.curves import Curves, Drawing
from ultimate_embedder.report.html.live_page import LivePage
from ultimate_embedder.summary import RunOptions

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"
Write = Callable[..., None]


def begin(at: float = 0.0, chunks: str = "chunks", output: str = "out") -> events.RunStarted:
    """A run begins."""
    return events.RunStarted(timestamp=START + at, options=RunOptions(), chunks=chunks, output=output)


@pytest.fixture
def page(tmp_path: Path) -> LivePage:
    return LivePage(Output(tmp_path))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Append events to the log."""

    def append(*written: events.Event, anew: bool = False) -> None:
        with open(tmp_path / "events.jsonl", "wb" if anew else "ab") as file:
            file.writelines(each.as_line() for each in written)

    return append


def _words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_the_page_follows_a_log_and_begins_anew_with_another_run(page: LivePage, write: Write) -> None:
    assert "Waiting for a run" in page.draw().parts["head"]
    write(begin(), started(), lease(), batch(2.0))
    first = page.draw()
    assert "100 of 1,000 texts encoded" in first.parts["head"]
    assert "100 of 1,000 texts, 10 %" in _words(first.parts["passes"])
    assert "leases cuda:0" in first.parts["log"]
    write(batch(3.0, 400))
    assert "500 of 1,000 texts encoded" in page.draw().parts["head"]
    write(begin(100.0, chunks="others"), started(101.0, collection="others", texts=7), anew=True)
    parts = page.draw().parts
    assert "0 of 7 texts encoded" in parts["head"]
    assert "leases cuda:0" not in parts["log"]
    assert "docs" not in parts["passes"]


def test_memory_throughput_leases_and_mitigations_are_on_the_timeline(page: LivePage, write: Write) -> None:
    reduced = events.Mitigated(
        timestamp=START + 3.0,
        collection="docs",
        kind="oom_bisect",
        details={"device": "cuda:0", "model": "minilm", "reason": "no room for 64 rows"},
    )
    write(begin(), started(), lease(), batch(2.0), reduced, batch(4.0))
    parts = page.draw().parts
    for shape in ('class="area"', 'class="ceiling"', 'class="dot"', 'class="fill pace"', 'class="lease"', "◆"):
        assert shape in parts["timeline"], shape
    assert "no room for 64 rows" in parts["timeline"]
    assert "no room for 64 rows" in parts["mitigations"]
    assert "3.0 GB of 12.0 GB" in _words(parts["devices"])


def test_curves_have_room_for_any_time_and_keep_every_token() -> None:
    drawing = Drawing(Curves(START, 60.0))
    moments = [1.0 + number * 13.7 for number in range(300)]
    for at in moments:
        while at >= drawing.found.seconds:
            drawing.found.stretch()
        drawing.take(batch(at, 10))
    found = drawing.finish()
    assert found.seconds == 60 * 2**7
    for bins in (found.lanes["cuda:0"].tokens_in, found.paces["minilm"].tokens_in):
        assert sum(bins) == pytest.approx(300 * 500)
    assert sum(count for *_, count in found.paces["minilm"].rows_in.values()) == 300
    assert max(found.lanes["cuda:0"].held_bytes) < 400


def test_names_from_outside_are_text_and_nothing_else(page: LivePage, write: Write) -> None:
    finished = events.CollectionFinished(timestamp=START + 5, collection=EVIL, status="failed", error=EVIL)
    write(
        begin(chunks=EVIL, output=EVIL),
        started(collection=EVIL, model=EVIL, devices=[EVIL], dtype=EVIL),
        lease(model=EVIL, devices=(EVIL,)),
        batch(2.0, model=EVIL, collection=EVIL, device=EVIL),
        events.Mitigated(timestamp=START + 3, collection=EVIL, kind=EVIL, details={"device": EVIL, "reason": EVIL}),
        events.Warned(timestamp=START + 3, collection=EVIL, message=EVIL),
        events.ModelMissing(timestamp=START + 3, model=EVIL, why=EVIL),
        finished,
        events.RunFinished(timestamp=START + 6, error=EVIL),
    )
    drawn = page.draw()
    assert "&lt;script&gt;" in drawn.parts["head"]
    for name, part in drawn.parts.items():
        assert "<script" not in part, name
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", part), name
        assert not re.search(r"<[^>]*\son\w+=", part), name


def test_odd_times_and_damaged_lines_do_no_harm(page: LivePage, write: Write, tmp_path: Path) -> None:
    write(begin(), started(), batch(1e300), batch(-1e300), batch(2.0))
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"event": "BatchEncoded"}\nnonsense\n')
    parts = page.draw().parts
    assert "2 lines of the log cannot be read" in parts["head"]
    assert "timeline" in parts


def test_a_link_in_the_place_of_the_log_is_not_followed(page: LivePage, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(begin(chunks="secret").as_line())
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "secret")
    drawn = page.draw()
    assert "is a link to" in drawn.parts["head"]
    assert drawn.look is None
