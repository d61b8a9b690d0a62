"""The live page, state, metrics and report of an output, over HTTP."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.serve.conftest import TEXTS, OpenClient
from ultimate_embedder.errors import ModelError
from ultimate_embedder.events import ModelBytesFetched, ModelFetchStarted, ModelLoadStarted
from ultimate_embedder.serve.model_states import ModelStates
from ultimate_embedder.serve.run_pages import draw_models


def test_the_page_shows_the_run_without_its_script(client: TestClient) -> None:
    page = client.get("/")
    texts = 2 * 2 * len(TEXTS)
    assert f"{texts} of {texts} texts encoded by 2 models" in page.text
    assert 'class="fill pace"' in page.text
    assert re.findall(r"<script[^>]*>", page.text) == ['<script src="/static/live.js" defer>']
    assert "style>" not in page.text
    for name in re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text):
        answer = client.get(name)
        assert answer.status_code == 200, name
        assert answer.headers["content-type"].partition(";")[0] in ("text/css", "text/javascript", "image/svg+xml")


def test_state_and_metrics_tell_the_same(client: TestClient) -> None:
    state = client.get("/state").json()
    assert (state["status"], len(state["passes"])) == ("finished", 4)
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'ultimate_embedder_run_status{status="finished"} 1' in metrics.text
    assert f'ultimate_embedder_collection_points{{collection="docs"}} {len(TEXTS)}' in metrics.text


def test_the_report_is_made_from_the_records_and_not_taken_from_the_output(
    open_client: OpenClient, served_output: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(served_output, tmp_path / "out"))
    (copy / "report.html").write_text("<script>alert('not ours')</script>")
    report = open_client(copy).get("/report")
    assert "chunks embedded in" in report.text
    assert "not ours" not in report.text
    assert "sandbox" in report.headers["content-security-policy"]
    assert "script-src" not in report.headers["content-security-policy"]


def test_a_killed_run_is_shown_as_killed(open_client: OpenClient, served_output: Path, tmp_path: Path) -> None:
    copy = tmp_path / "out"
    copy.mkdir()
    (copy / ".ultimate-embedder.lock").touch()
    lines = (served_output / "events.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "events.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    client = open_client(copy)
    assert client.get("/state").json()["status"] in ("killed", "running", "not_running_here")
    assert "Not ended" in client.get("/report").text
    assert client.get("/").status_code == 200


def test_an_output_without_events_says_so(open_client: OpenClient, tmp_path: Path) -> None:
    (tmp_path / "docs" / "store").mkdir(parents=True)
    client = open_client(tmp_path)
    assert "Waiting for a run" in client.get("/").text
    answer = client.get("/report", headers={"Accept": "text/html"})
    assert answer.status_code == 503
    assert "no summary.json and no events.jsonl" in answer.text
    (tmp_path / "events.jsonl").symlink_to("/etc/passwd")
    client = open_client(tmp_path)
    assert "is a link to /etc/passwd" in client.get("/").text
    assert client.get("/state").status_code == 404
    assert "is a link to /etc/passwd" in client.get("/report").json()["error"]["message"]
    assert client.get("/metrics").status_code == 200


def test_models_of_the_server_are_told_with_what_they_do() -> None:
    states = ModelStates()
    assert draw_models(states.all()) == ""
    with states.watching():
        states(ModelLoadStarted(model="a"))
        assert "loading for 0 s" in draw_models(states.all())
        states(ModelFetchStarted(model="b", files=1, size_bytes=2_000_000))
        states(ModelBytesFetched(model="b", size_bytes=1_000_000))
        assert "downloading for 0 s: 1 of 2 MB" in draw_models(states.all())
    states.count("a", texts=3, tokens=1234)
    assert "ready" in draw_models(states.all())
    assert "1,234" in draw_models(states.all())
    states(ModelLoadStarted(model="<c>"))
    with pytest.raises(ModelError), states.watching():
        raise ModelError("<gone>")
    assert "&lt;c&gt;</td><td>failed: &lt;gone&gt;" in draw_models(states.all())
