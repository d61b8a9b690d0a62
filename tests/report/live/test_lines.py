"""Views as lines: wide, narrow, with odd names, and where there is no room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from tests.report.live.test_state import START, batch, fold, lease, started, tokenized
from ultimate_embedder import events
from ultimate_embedder.report.live import RunView
from ultimate_embedder.report.live.layout import PLAIN, bar_for, plain
from ultimate_embedder.report.live.lines import percent, rough, run_lines
from ultimate_embedder.report.live.quiet import QuietLines


@pytest.fixture
def view() -> RunView:
    """Two models, of which one has begun; two devices, of which one works."""
    chosen = events.ModeChosen(
        timestamp=START,
        collection="docs",
        mode="exclusive",
        why="",
        fusion="named",
        weights={"minilm": 0.5, "bge": 0.5},
    )
    return fold(
        events.CollectionsFound(timestamp=START, collections=3),
        events.CollectionStarted(timestamp=START, collection="docs", files=1),
        events.ChunksLoaded(
            timestamp=START, collection="docs", found=1000, loaded=1000, rejected=0, distinct_texts=1000, seconds=0.0
        ),
        chosen,
        lease(devices=("cuda:0", "cuda:1")),
        started(devices=["cuda:0", "cuda:1"]),
        tokenized(0.0, 1000, 50_000),
        *(batch(float(at), wait_seconds=0.0) for at in range(1, 5)),
        events.ExportStarted(timestamp=START + 1, collection="docs", kind="npy"),
        events.PointsExported(timestamp=START + 3, collection="docs", kind="npy", points=50, total=200),
    ).view()


def shown(view: RunView, width: int, most: int | None = None) -> list[str]:
    """The lines as text."""
    return [plain(line) for line in run_lines(view, width, PLAIN, most)]


def test_a_wide_terminal_has_a_line_for_each_device_pass_and_task(view: RunView) -> None:
    passed = "40 %  400 of 1,000 texts  5,000 tokens/s  batch 100  ETA 6 s"
    assert shown(view, 120) == [
        "docs · collection 1 of 3 · 4 s",
        "cuda:0  #######-----------------------  3.0 of 12.0 GB  5,000 tokens/s  idle 0 %  minilm",
        "cuda:1  #######-----------------------  3.0 of 12.0 GB      0 tokens/s            minilm",
        f"minilm on cuda:0, cuda:1  ############------------------  {passed}",
        "bge, waiting",
        "docs: writing npy  #######-----------------------  25 %  50 of 200 points  ETA 9 s",
    ]


def test_a_narrow_terminal_has_two_lines_for_a_pass(view: RunView) -> None:
    lines = shown(view, 59)
    assert lines == [
        "docs · collection 1 of 3 · 4 s",
        "cuda:0  ###---------  3.0 of 12.0 GB  5,000 tok/s  idle 0 %",
        "cuda:1  ###---------  3.0 of 12.0 GB      0 tok/s",
        "minilm on cuda:0, cuda:1",
        "   ###-----  40 %  400 of 1,000 texts  5,000 tok/s  ETA 6 s",
        "bge, waiting",
        "docs: writing npy  #------  25 %  50 of 200 points  ETA 9 s",
    ]


@pytest.mark.parametrize("width", [1, 10, 20, 40, 59, 79, 100, 119, 300])
def test_no_line_is_wider_than_the_terminal_as_far_as_that_can_be(view: RunView, width: int) -> None:
    wide = replace(view, passes=tuple(replace(each, model="模型" * 30) for each in view.passes))
    for lines in (shown(view, width), shown(wide, width)):
        assert all(cell_len(line) <= max(width, 40) for line in lines)


def test_a_low_terminal_shows_what_fits(view: RunView) -> None:
    assert shown(view, 120, most=3) == [*shown(view, 120)[:2], "… 4 lines more"]
    many = replace(view, devices=view.devices * 50)
    assert "… 84 devices more" in shown(many, 120)


def test_a_lost_device_and_a_pass_that_began_again_say_so(view: RunView) -> None:
    device, row = replace(view.devices[0], lost="it fell off"), replace(view.passes[0], restarts=1)
    lines = shown(replace(view, devices=(device,), passes=(row,)), 140)
    assert "cuda:0  lost" in lines
    assert any("begun again in float16" in line for line in lines)


def test_bars_are_plain_where_the_stream_has_no_blocks() -> None:
    assert bar_for("ascii") == bar_for("no such encoding") == PLAIN
    assert bar_for("utf-8") == bar_for(None) != PLAIN


def test_the_end_is_not_told_before_it_is_reached() -> None:
    assert (percent(0.999), percent(1.0), percent(0.29)) == ("99 %", "100 %", "29 %")
    assert (rough(3.4), rough(59.7), rough(3700)) == ("3 s", "1 min 00 s", "1 h 01 min")


def test_without_a_terminal_there_is_a_line_for_each_pass_and_for_tasks_that_take_long(view: RunView) -> None:
    lines: list[str] = []
    QuietLines(lines.append).draw(view)
    assert lines == ["docs · minilm on cuda:0, cuda:1: 400 of 1,000, 100/s, ETA 6 s"]
    long = tuple(replace(each, seconds=20.0) for each in view.activities)
    unknown = replace(long[0], words="loading bge", share=None, total=None)
    lines.clear()
    QuietLines(lines.append).draw(replace(view, passes=(), activities=(*long, unknown)))
    assert lines == ["docs: writing npy: 50 of 200 points, ETA 9 s", "loading bge, 20 s so far"]
