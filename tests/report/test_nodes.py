"""Nodes of a cluster in the summary, the page, the live view and what is said, from recorded events."""

from __future__ import annotations

from pathlib import Path

from tests.support.node_events import LOST, REFUSED, batch, cluster_run, joined, lease, lost, refused
from ultimate_embedder import events
from ultimate_embedder.output import Output
from ultimate_embedder.report.html.curves import Curves, Drawing
from ultimate_embedder.report.html.live_page import LivePage
from ultimate_embedder.report.html.page import make_page
from ultimate_embedder.report.live import RunState
from ultimate_embedder.report.live.layout import plain
from ultimate_embedder.report.live.lines import run_lines
from ultimate_embedder.report.replay import replayed_summary
from ultimate_embedder.report.said import Speaker
from ultimate_embedder.report.summary import SummaryBuilder
from ultimate_embedder.status import output_nodes
from ultimate_embedder.summary import RunSummary
from ultimate_embedder.types import by_node, is_cpu, node_of

EVIL = "<script>alert(1)</script>"


def summarised(told: list[events.Event]) -> RunSummary:
    builder = SummaryBuilder()
    for event in told:
        builder(event)
    return builder.summary


def said(told: list[events.Event]) -> list[str]:
    speaker = Speaker()
    return [line for event in told for line, _ in speaker.lines(event)]


def view_lines(told: list[events.Event], width: int = 120) -> list[str]:
    state = RunState()
    for event in told:
        state(event)
    return [plain(line) for line in run_lines(state.view(), width)]


def test_the_summary_has_every_node_with_what_it_did_and_what_became_of_it() -> None:
    nodes = {node.node: node for node in summarised(cluster_run()).nodes}
    assert {name: (node.texts, node.batches, node.lost) for name, node in nodes.items()} == {
        "node-1": (100, 1, 0),
        "node-2": (600, 2, 1),
        "node-3": (300, 1, 0),
        "node-4": (0, 0, 0),
    }
    assert [each.name for each in nodes["node-2"].devices] == ["node-2/cuda:0", "node-2/cuda:1"]
    assert (nodes["node-2"].losses[0].reason, nodes["node-2"].losses[0].texts) == (LOST, 2048)
    assert nodes["node-4"].refused == REFUSED
    assert nodes["node-4"].joined_at is None
    assert nodes["node-3"].host == "host-of-node-3"


def test_devices_of_a_node_that_joins_late_are_in_the_summary() -> None:
    summary = summarised(cluster_run())
    devices = {each.device: each for each in summary.devices}
    assert list(devices) == ["node-1/cuda:0", "node-1/cuda:1", "node-2/cuda:0", "node-2/cuda:1", "node-3/cuda:0"]
    assert devices["node-1/cuda:0"].ceiling_reason == "margin"
    assert devices["node-3/cuda:0"].batches == 1


def test_texts_that_are_encoded_again_after_a_loss_count_once() -> None:
    again = summarised([*cluster_run(), batch("node-1/cuda:0", 11.0, 200)]).collections[0]
    assert again.passes[0].encoded_texts == 1200
    assert again.chunks.newly_encoded == 1000


def test_a_node_that_is_lost_before_there_is_work_makes_no_collection() -> None:
    early = events.Mitigated(kind="node_lost", details={"device": "node-1", "reason": LOST, "rows": 0})
    summary = summarised([early])
    assert summary.collections == []
    assert summary.nodes[0].lost == 1


def test_a_log_gives_the_same_nodes(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"".join(event.as_line() for event in cluster_run()))
    again = replayed_summary(tmp_path / "events.jsonl")
    assert again is not None
    assert again.nodes == summarised(cluster_run()).nodes


def test_a_run_on_one_machine_has_no_nodes() -> None:
    local = [event for event in cluster_run() if not isinstance(event, events.NodeJoined | events.NodeRefused)]
    assert summarised(local[:1]).nodes == []


def test_a_node_that_joins_is_lost_or_refused_is_said() -> None:
    lines = said(cluster_run())
    assert "node-1 joined: 10.0.0.5 (host-of-node-1), 2 x Tesla T4, float16" in lines
    assert f"warning: node-4 (10.0.0.9) was refused: {REFUSED}" in lines
    differs = said([joined("node-9", 0.0, differs=("torch is 2.1 there and 2.5 here",))])
    assert differs[1] == "warning: node-9: torch is 2.1 there and 2.5 here; the last digits of its vectors may differ"


def test_the_live_view_shows_nodes_that_are_gone_and_devices_in_their_order() -> None:
    told = cluster_run()
    until_lost = told[: told.index(lost("node-2", 6.0)) + 1]
    lines = view_lines(until_lost)
    assert any(line.startswith("node-2") and f"lost: {LOST}" in line for line in lines)
    assert not any(line.startswith("node-2/") for line in lines)
    assert any(line.startswith("node-4") and "refused: python is 3.12.1" in line for line in lines)
    back = view_lines(told)
    assert [line.split()[0] for line in back if line.startswith("node-")][:5] == [
        "node-1/cuda:0",
        "node-1/cuda:1",
        "node-2/cuda:0",
        "node-2/cuda:1",
        "node-3/cuda:0",
    ]
    assert any("minilm on 5 devices of 3 nodes" in line for line in back)


def test_a_cluster_with_many_devices_has_a_line_for_each_node() -> None:
    nodes = [joined(f"node-{number}", 1.0, 8) for number in range(1, 11)]
    told = [*cluster_run()[:1], *nodes, *(batch(f"node-10/cuda:{card}", 3.0) for card in range(8))]
    lines = view_lines(told)[:10]
    assert [line.split()[0] for line in lines] == [f"node-{number}" for number in range(1, 11)]
    assert "8 devices" in lines[9]
    assert "40,000 tokens/s" in lines[9]


def test_each_node_has_its_own_lease_of_a_model() -> None:
    state = RunState()
    for event in cluster_run():
        state(event)
    state(lease("node-3", 11.0, 1, events.LeaseReleased))
    (row,) = state.view().leases
    assert row.devices == ("node-1/cuda:0", "node-1/cuda:1", "node-2/cuda:0", "node-2/cuda:1")
    by_name = {each.name: each.models for each in state.view().devices}
    assert by_name["node-1/cuda:0"] == ("minilm",)
    assert by_name["node-3/cuda:0"] == ()


def test_the_lease_of_a_node_ends_when_it_is_lost() -> None:
    devices = {each.device: each for each in summarised(cluster_run()).devices}
    assert devices["node-2/cuda:1"].leased_seconds == 2.5
    assert devices["node-1/cuda:1"].leased_seconds == 0.0, "it goes on"
    drawing = Drawing(Curves(cluster_run()[0].timestamp, 20.0))
    for event in cluster_run():
        drawing.take(event)
    lanes = drawing.finish().lanes
    assert [(span.begin, span.end) for span in lanes["node-2/cuda:1"].leases["minilm"]] == [(3.5, 6.0), (9.5, 20.0)]


def test_the_page_has_a_section_of_nodes_and_lanes_by_node() -> None:
    told = [*cluster_run(), joined("node-5", 11.0, host=EVIL), refused("node-6", 12.0, EVIL)]
    drawing = Drawing(Curves(told[0].timestamp, 20.0))
    for event in told:
        drawing.take(event)
    page = make_page(summarised(told), drawing.finish())
    assert "<h2>Nodes</h2>" in page
    assert "2 x Tesla T4" in page
    assert f"lost: {LOST}" in page
    assert EVIL not in page
    assert "node-2 was lost 1 time" in page
    assert "node-4 was refused" in page
    assert "Read it; nothing else is known" not in page
    places = [page.index(f"<h3>{name} ") for name in ("node-1/cuda:0", "node-2/cuda:0", "node-3/cuda:0")]
    assert places == sorted(places)


def test_the_live_page_groups_devices_by_node(tmp_path: Path) -> None:
    told = [*cluster_run(), refused("node-6", 12.0, EVIL)]
    (tmp_path / "events.jsonl").write_bytes(b"".join(event.as_line() for event in told))
    devices = LivePage(Output(tmp_path)).draw().parts["devices"]
    places = [devices.index(words) for words in ("<h3>node-1 ", "<h3>node-1/cuda:1<", "<h3>node-2 ", "<h3>node-3 ")]
    assert places == sorted(places)
    assert "refused: " in devices
    assert EVIL not in devices


def test_names_of_devices_tell_their_node() -> None:
    assert (node_of("node-2/cuda:0"), node_of("cuda:0")) == ("node-2", None)
    assert is_cpu("node-2/cpu")
    assert not is_cpu("node-2/cuda:0")
    assert sorted(["node-10/cpu", "node-9/cpu", "cpu"], key=by_node) == ["cpu", "node-9/cpu", "node-10/cpu"]


def test_status_tells_what_each_node_of_the_last_run_did(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(summarised(cluster_run()).model_dump_json())
    assert list(output_nodes(tmp_path)) == [
        f"node-4 (10.0.0.9): it did not take part; refused: {REFUSED}",
        "node-1 (10.0.0.5): 100 texts on 2 devices",
        f"node-2 (10.0.0.5): 600 texts on 2 devices; lost 1 time; last: {LOST}",
        "node-3 (10.0.0.5): 300 texts on 1 device",
    ]
