"""What a user sees while a run goes on: in a pipe, in a terminal, in a notebook, and when asked to be quiet."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, events
from ultimate_embedder.report import make_progress
from ultimate_embedder.report.live import notebook, quiet
from ultimate_embedder.report.live import terminal as terminal_screen
from ultimate_embedder.types import FieldsUsed

MODEL_LINE = "tiny-bert: 64 dims, float32, 512 tokens"
LABEL = "docs · tiny-bert on cpu"
TEXTS = [f"{number} " + "word " * 50 for number in range(50)]
STARTED = events.UploadStarted(collection="docs", target="there", points=10, uploaded=4, created=False)

Watch = Callable[..., None]


@pytest.fixture(scope="module")
def model() -> str:
    """Made once, before anything is captured: making it has progress bars of its own."""
    return str(tiny_model("bert"))


@pytest.fixture
def watch(model: str, write_chunks: WriteChunks, tmp_path: Path) -> Watch:
    """Run embed, to look at what it shows."""

    def run(quiet: bool = False, collection: str = "docs", records: list[str] = TEXTS) -> None:
        chunks = write_chunks(records, collection)
        embed(chunks, tmp_path / "out", models=[model], exports=["npy"], quiet=quiet)

    return run


class Terminal:
    """A pseudo-terminal that is stderr while its context is open; afterwards `shown` is what came out of it."""

    def __init__(self) -> None:
        self.shown = ""
        self._screen, line = os.openpty()
        self._stderr = open(line, "w", encoding="utf-8")  # noqa: SIM115 - closed on exit
        self._redirected = contextlib.redirect_stderr(self._stderr)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Terminal:
        self._reader.start()
        self._redirected.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._redirected.__exit__(None, None, None)
        self._stderr.close()
        self._reader.join()
        os.close(self._screen)

    def _read(self) -> None:
        content = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while block := os.read(self._screen, 4096):
                content += block
        self.shown = content.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 100 columns; enter it in the test, as pytest sets stderr anew after the fixtures."""
    if sys.platform == "win32":
        pytest.skip("Windows has no pseudo-terminals")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def without_controls(shown: str) -> str:
    """What is shown, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown)


def fake_ipython(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    """Let IPython be loaded, with this shell."""
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)


# pipes and files


def test_a_pipe_gets_a_line_at_the_beginning_and_at_the_end(watch: Watch, capfd: pytest.CaptureFixture[str]) -> None:
    watch()
    told = capfd.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert re.fullmatch(r"docs: 50 chunks, 50 distinct texts, read in \d+\.\d s", lines[0])
    assert lines[1:3] == [MODEL_LINE, f"{LABEL}: 0 of 50"]
    assert re.fullmatch(rf"{LABEL}: 50 of 50, [\d,]+/s", lines[3])
    assert len(lines) == 4


def test_a_pipe_gets_a_line_now_and_then(
    watch: Watch, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "SECONDS_BETWEEN_LINES", 0.001)
    watch()
    counts = [int(number) for number in re.findall(rf"{LABEL}: (\d+) of 50", capfd.readouterr().err)]
    assert counts[0] == 0
    assert counts[-1] == 50
    assert counts == sorted(counts)
    assert len(counts) > 2


def test_a_second_run_says_that_everything_is_there(watch: Watch, capfd: pytest.CaptureFixture[str]) -> None:
    watch(quiet=True)
    watch()
    assert "docs: reused the vectors of all 50 texts from an earlier run\n" in capfd.readouterr().err


def test_rejections_and_failures_are_told(watch: Watch, capfd: pytest.CaptureFixture[str]) -> None:
    watch(records=["", "  "])
    lines = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"docs: 0 chunks, 0 distinct texts, 2 rejected, read in \d+\.\d s", lines[0])
    assert lines[1] == "docs: failed: all 2 records were rejected; 'rejected' says why"


def test_a_retry_and_a_warning_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    with make_progress(quiet=False) as sink:
        sink(events.Retried(what="send points", attempt=2, wait_seconds=1.5, reason="503"))
        sink(events.Warned(message="the moon is full"))
        sink(events.Warned(collection="docs", message="so is the disk"))
    assert capfd.readouterr().err.splitlines() == [
        "cannot send points (503), attempt 2: retrying in 1.5 s",
        "warning: the moon is full",
        "warning: docs: so is the disk",
    ]


def test_what_was_recognised_is_told_once_per_collection(capfd: pytest.CaptureFixture[str]) -> None:
    counts: dict[str, Any] = {"found": 3, "loaded": 3, "rejected": 0, "distinct_texts": 3, "seconds": 0.0}
    langchain = FieldsUsed("page_content", "id", None, "LangChain", 3)
    others = (FieldsUsed("content", None, "meta", None, 2_000), FieldsUsed(None, None, None, None, 1))
    with make_progress(quiet=False) as shown:
        shown(events.ChunksLoaded(collection="docs", fields=(langchain,), **counts))
        shown(events.ChunksLoaded(collection="more", fields=others, **counts))
    assert capfd.readouterr().err.splitlines() == [
        "docs: 3 chunks, 3 distinct texts, read in 0.0 s",
        "docs: text from page_content, ids from id (LangChain)",
        "more: 3 chunks, 3 distinct texts, read in 0.0 s",
        "more: 2,000 x text from content, metadata from meta, ids made from file and text",
        "more: 1 x bare strings",
    ]


# quiet


def test_each_kind_of_mitigation_is_shown_once_per_model(capfd: pytest.CaptureFixture[str]) -> None:
    with make_progress(quiet=False) as shown:
        for model in ("a", "a", "b"):
            shown(events.Mitigated(collection="docs", kind="oom_bisect", details={"model": model}))
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        f"docs: {model}: the batch is halved; the size that was too much is remembered" for model in ("a", "b")
    ]


def test_a_quiet_run_shows_nothing(watch: Watch, capfd: pytest.CaptureFixture[str]) -> None:
    watch(quiet=True)
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_quiet_run_shows_nothing_in_a_terminal(watch: Watch, terminal: Terminal) -> None:
    with terminal:
        watch(quiet=True)
    assert terminal.shown == ""


# terminals


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw again and again: the run is short."""
    monkeypatch.setattr(terminal_screen, "EVERY_S", 0.001)


def test_a_terminal_shows_the_pass_and_its_device_and_keeps_a_line_of_it(
    watch: Watch, terminal: Terminal, fast: None
) -> None:
    with terminal:
        watch()
    plain = without_controls(terminal.shown)
    assert MODEL_LINE + "\r\n" in plain
    assert re.search(r"cpu  [█░]+  [\d.]+ of [\d.]+ GB  [\d,]+ tokens/s", plain)
    assert re.search(r"tiny-bert on cpu  [█░]+  \d+ %  \d+ of 50 texts", plain)
    lines = [line for line in re.split(r"[\r\n]+", plain) if line.startswith(LABEL)]
    assert re.match(rf"{LABEL}: 50 of 50, [\d,]+/s", lines[-1])
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_a_terminal_shows_what_is_under_way(terminal: Terminal) -> None:
    steps: list[tuple[events.Event, str]] = [
        (events.CollectionStarted(collection="docs", files=1), "docs: reading chunks"),
        (events.ModelLoadStarted(model="tiny-bert"), "loading tiny-bert"),
        (events.ExportStarted(collection="docs", kind="npy"), "docs: writing npy"),
    ]
    with terminal, make_progress(quiet=False) as sink:
        for event, _ in steps:
            sink(event)
            sink._live.draw()
    places = [terminal.shown.find(words) for _, words in steps]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    watch: Watch, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    with terminal:
        watch()
    assert f"{LABEL}: 0 of 50\r\n" in terminal.shown
    assert "\x1b" not in terminal.shown


def test_no_color_means_no_colour(
    watch: Watch, terminal: Terminal, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal:
        watch()
    assert "tiny-bert on cpu" in terminal.shown
    assert not re.search(r"\x1b\[[\d;]*3\dm", terminal.shown)


def test_a_terminal_has_its_cursor_back_when_a_run_is_interrupted(terminal: Terminal) -> None:
    with terminal, contextlib.suppress(KeyboardInterrupt), make_progress(quiet=False) as sink:
        sink(STARTED)
        sink(events.BatchUploaded(collection="docs", target="there", points=1))
        sink._live.draw()
        raise KeyboardInterrupt
    assert "docs → there" in terminal.shown
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_a_terminal_shows_odd_names_as_they_are(watch: Watch, terminal: Terminal, fast: None) -> None:
    with terminal:
        watch(collection="[red] :smile:")
    assert "[red] :smile:: 50 chunks" in terminal.shown
    assert "[red] :smile: · tiny-bert" in terminal.shown
    assert "[red] :smile: · 0 s" in without_controls(terminal.shown)


# notebooks


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The HTML of everything that is displayed, oldest first."""
    display = pytest.importorskip("IPython.display")
    found: list[str] = []

    def show(what: Any, display_id: bool = False) -> types.SimpleNamespace:
        found.append(what._repr_html_())
        return types.SimpleNamespace(update=show)

    monkeypatch.setattr(display, "display", show)
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    return found


def test_a_notebook_gets_a_block_that_is_updated_in_place(
    watch: Watch, shown: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "EVERY_S", 0.001)
    watch()
    assert '<progress value="0.0000" max="1"></progress>' in "".join(shown)
    assert ">tiny-bert on cpu<" in "".join(shown)
    assert re.search(rf"<div>{MODEL_LINE}</div>.*<div>{LABEL}: 50 of 50, [\d,]+/s</div>", shown[-1])
    assert "<progress" not in shown[-1]
    assert capfd.readouterr() == ("", "")


def test_a_notebook_bar_goes_on_from_where_the_last_run_was(shown: list[str]) -> None:
    with make_progress(quiet=False) as sink:
        sink(STARTED)
        sink._live.draw()
        sink(events.BatchUploaded(collection="docs", target="there", points=6))
        sink(events.UploadFinished(collection="docs", target="there", counted=10, seconds=1.0))
    assert any('<progress value="0.4000" max="1">' in each for each in shown)
    assert "docs → there: 10 of 10 points, " in shown[-1]


def test_names_are_escaped_in_a_notebook(shown: list[str]) -> None:
    with make_progress(quiet=False) as sink:
        sink(events.Warned(message="a file <script>alert(1)</script>\x1b[2J"))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J" in shown[-1]


@pytest.mark.parametrize(
    "shell", [None, types.SimpleNamespace(config={"TerminalIPythonApp": {}})], ids=["no shell", "in a terminal"]
)
def test_ipython_alone_is_no_notebook(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], shell: object
) -> None:
    fake_ipython(monkeypatch, shell)
    watch()
    assert f"{LABEL}: 0 of 50\n" in capfd.readouterr().err
