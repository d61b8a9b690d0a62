"""Units to nodes and back: whatever becomes of nodes, every text is done once."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.execution.cluster.fake_cluster import Clock, FakeCluster, FakeHandle, FakeNode, facts, vectors_of
from ultimate_embedder.errors import OutputError, StoppedError, TransferError, UsageError
from ultimate_embedder.events import Event, Mitigated, NodeJoined, NodeRefused
from ultimate_embedder.execution.cluster.dispatch import IN_FLIGHT, MOST_ERRORS, Dispatcher, Job, Patience
from ultimate_embedder.execution.cluster.executor import wait_for_nodes
from ultimate_embedder.execution.cluster.facts import versions
from ultimate_embedder.execution.cluster.roster import Roster
from ultimate_embedder.execution.cluster.units import PassOrder, Unit, UnitResult, cut_units
from ultimate_embedder.planning import PassPlan, Rows
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import PassIdentity, ResolvedModel

MODEL = ResolvedModel("tiny", None, Path("tiny"), "folder", "1", "0" * 64, 1)
IDENTITY = PassIdentity(
    model="tiny", revision="1", model_digest="0" * 64, dtype="float32", max_tokens=None, dim=None, document_prompt=None
)
PLAN = PassPlan(0, MODEL, 1.0, IDENTITY)


class Texts:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.keys = np.array([[number, len(text)] for number, text in enumerate(texts)], np.uint64)

    def count(self, rows: Rows) -> int:
        return len(self.texts)

    def read(self, rows: Rows) -> Any:
        yield self.keys, self.texts


class Run:
    """A run of one pass, or several, over some texts on a fake cluster."""

    def __init__(
        self, nodes: list[FakeNode], texts: int = 40, seed: int = 0, passes: int = 1, unit: int = 4, **patience: float
    ) -> None:
        self.clock = Clock()
        self.texts = Texts([f"text {number} {'x' * (number % 7)}" for number in range(texts)])
        self.cluster = FakeCluster(nodes, self.clock, IDENTITY, seed)
        self.events: list[Event] = []
        self.roster = Roster(self.cluster, versions(), self.events.append, self.clock)
        self.stop = StopSwitch()
        self.stored: list[dict[bytes, np.ndarray]] = [{} for _ in range(passes)]
        self.doubled = 0
        self.rejected: list[tuple[str, str]] = []
        self.lost_answers: list[tuple[str, str, int]] = []
        self.during: Callable[[], None] = lambda: None
        self.jobs = [self._job(number, unit) for number in range(passes)]
        self.patience = Patience(patience.get("unit_s", 30.0), patience.get("node_s", 20.0))

    def _job(self, number: int, unit_texts: int) -> Job:
        plan = dataclasses.replace(PLAN, number=number)

        def take(unit: Unit, result: UnitResult, member: Any) -> None:
            for key, vector in zip(result.keys, result.vectors, strict=True):
                self.doubled += bytes(key) in self.stored[number]
                self.stored[number][bytes(key)] = vector
            self.during()

        return Job(
            order=PassOrder(plan, "tiny", "c", 0, 0),
            units=cut_units(self.texts, Rows(0, len(self.texts.texts)), plan, unit_texts),
            take=take,
            reject=lambda unit, reason: self.rejected.append((unit.texts[0], reason)),
            tell=lambda events, member: None,
            split=lambda unit, reason: None,
            lose_answer=lambda unit, why, member: self.lost_answers.append((member.name, why, len(unit))),
            give_up=lambda texts, unusable: None,
        )

    def go(self) -> Run:
        wait_for_nodes(self.roster, self.stop, 5.0)
        Dispatcher(self.jobs, self.roster, self.stop, self.patience, self.clock).run()
        return self

    def check(self, *without: str) -> None:
        """Every text once, with its own vector, but those that were rejected."""
        assert not self.doubled
        wanted = {
            bytes(key): vectors_of(Unit("", 0, self.texts.keys[:1], (text,)))[0]
            for key, text in zip(self.texts.keys, self.texts.texts, strict=True)
            if text not in without
        }
        for stored in self.stored:
            assert stored.keys() == wanted.keys()
            assert all((stored[key] == wanted[key]).all() for key in wanted)

    def lost(self) -> list[Mitigated]:
        return [event for event in self.events if isinstance(event, Mitigated) and event.kind == "node_lost"]


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nodes the loop sleeps; here time passes instead."""

    def pass_time(seconds: float) -> None:
        for clock in Clock.all:
            clock.now += seconds

    monkeypatch.setattr(time, "sleep", pass_time)


def once(fate: str, at: int = 3) -> Callable[[Unit], str]:
    """Something happens to one unit, and to no other."""
    count = iter(range(10**9))
    return lambda unit: fate if next(count) == at else "done"


def test_all_texts_come_back_and_the_faster_node_takes_more() -> None:
    run = Run([FakeNode("a", rounds=1), FakeNode("b", rounds=6)], texts=200).go()
    run.check()
    by_node = Counter(node for node, _ in run.cluster.given)
    assert by_node["a"] > 2 * by_node["b"] > 0


def test_a_node_has_at_most_two_units_at_a_time() -> None:
    run = Run([FakeNode("a", rounds=5)])
    held: list[int] = []
    run.during = lambda: held.extend(len(member.given) for member in run.roster.members.values())
    run.go().check()
    assert max(held) <= IN_FLIGHT


@pytest.mark.parametrize("fate", ["dies", "answer lost", "error", "half", "frozen"])
def test_what_happens_to_a_unit_loses_nothing(fate: str) -> None:
    run = Run([FakeNode("a", fate=once(fate)), FakeNode("b")]).go()
    run.check()
    assert len(run.lost()) == (fate in ("dies", "error", "half", "frozen"))


def test_an_answer_that_is_lost_is_told_with_its_node_and_computed_again() -> None:
    run = Run([FakeNode("a", fate=once("answer lost")), FakeNode("b")]).go()
    run.check()
    assert run.lost_answers == [("node-1", "lost on its way", 4)]
    counts = Counter(unit.id for _, unit in run.cluster.given)
    assert sorted(counts.values()) == [1] * 9 + [2]


def test_answers_of_a_unit_that_are_always_lost_are_an_error_with_what_to_do() -> None:
    bad = "text 21 "
    nodes = [FakeNode(name, fate=lambda unit: "answer lost" if bad in unit.texts else "done") for name in "ab"]
    run = Run(nodes)
    with pytest.raises(
        TransferError, match=r"4 texts failed 3 times.*node-. \(10\.0\.0\..\): lost on.*ray memory.*resumes"
    ):
        run.go()
    assert len(run.lost_answers) == 3
    assert run.stored[0]


def test_a_connection_that_is_half_open_is_found_long_before_the_deadline_of_a_unit() -> None:
    run = Run([FakeNode("a", fate=once("half open")), FakeNode("b")], unit_s=300.0).go()
    run.check()
    assert len(run.lost()) == 1
    assert run.clock.now < 60


def test_a_node_that_answers_late_is_asked_again_and_nothing_of_its_answers_is_dropped() -> None:
    run = Run([FakeNode("a", rounds=400)], texts=8, unit_s=300.0)
    told: list[int] = []
    run.jobs[0].tell = lambda events, member: told.append(len(member.asked))
    progress = FakeHandle.progress

    def late(handle: FakeHandle) -> int:
        ticket = progress(handle)
        run.cluster.delay(ticket, 300)
        return ticket

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeHandle, "progress", late)
        run.go().check()
    assert not run.lost()
    assert max(told) > 0


def test_a_node_that_is_gone_is_replaced_by_one_that_joins_late() -> None:
    first, late = FakeNode("a"), FakeNode("b", alive=False)
    run = Run([first, late])

    def swap() -> None:
        if len(run.stored[0]) >= 12:
            first.alive, late.alive = False, True

    run.during = swap
    run.go().check()
    joined = [event.node for event in run.events if isinstance(event, NodeJoined)]
    assert joined == ["node-1", "node-2"]


def test_a_text_that_ends_every_process_is_found_and_rejected() -> None:
    bad = "text 21 "
    nodes = [FakeNode(name, fate=lambda unit: "dies" if bad in unit.texts else "done") for name in "ab"]
    run = Run(nodes, texts=64, unit=16).go()
    run.check(bad)
    ((text, reason),) = run.rejected
    assert text == bad
    assert "3 processes" in reason


def test_without_a_node_the_run_stops_and_can_be_resumed() -> None:
    node = FakeNode("a")
    run = Run([node])
    run.during = lambda: setattr(node, "alive", False)
    with pytest.raises(StoppedError, match="no node was there for 20 s"):
        run.go()
    assert run.stored[0]


def test_a_node_that_always_fails_is_left_alone_and_the_others_go_on() -> None:
    run = Run([FakeNode("a", fate=lambda unit: "dies"), FakeNode("b")], texts=200).go()
    run.check()
    refused = [event for event in run.events if isinstance(event, NodeRefused)]
    assert all("in a row" in event.reason for event in refused)
    assert run.lost()
    assert not run.rejected


def test_a_broken_node_makes_no_text_guilty() -> None:
    run = Run(
        [FakeNode("a", fate=lambda unit: "dies"), FakeNode("b", rounds=200)], texts=12, unit=1, unit_s=1000.0
    ).go()
    run.check()
    assert run.lost()
    assert not run.rejected


def test_a_model_that_fp16_is_too_narrow_for_is_given_up_at_once() -> None:
    run = Run([FakeNode("a", fate=once("narrow")), FakeNode("b")], texts=200)
    given_up: list[tuple[int, int]] = []
    run.jobs[0].give_up = lambda texts, unusable: given_up.append((texts, unusable))
    run.go()
    assert given_up == [(4, 3)]
    assert len(run.cluster.given) < 20


def test_a_stop_asks_all_nodes_to_end_and_waits_for_what_is_under_way() -> None:
    run = Run([FakeNode("a"), FakeNode("b")], texts=400)
    run.during = lambda: run.stop.stop("enough")
    run.go()
    assert all(handle.stopped for handle in run.cluster.started)
    assert 0 < len(run.stored[0]) < 100


def test_vectors_that_cannot_be_stored_are_computed_again_and_then_an_error() -> None:
    run = Run([FakeNode("a")])
    store = run.jobs[0].take
    problems = iter(["it is not there"])
    run.jobs[0].take = lambda unit, result, member: next(problems, None) or store(unit, result, member)
    run.go().check()
    run = Run([FakeNode("a")])
    run.jobs[0].take = lambda unit, result, member: "it is not there"
    with pytest.raises(OutputError, match=r"it is not there.*--shared-output"):
        run.go()


def test_two_passes_share_the_nodes_and_both_are_done() -> None:
    run = Run([FakeNode("a"), FakeNode("b"), FakeNode("c")], passes=2, texts=100).go()
    run.check()
    by_pass = {(node, unit.model_pass) for node, unit in run.cluster.given}
    assert {number for _, number in by_pass} == {0, 1}


def test_a_node_that_cannot_load_the_model_is_refused_and_the_others_do_its_work() -> None:
    run = Run([FakeNode("a", begin=UsageError("no such model")), FakeNode("b")]).go()
    run.check()
    assert run.roster.refusals == {"node-1": "no such model"}


def test_where_no_node_can_load_the_model_its_error_is_that_of_the_run() -> None:
    with pytest.raises(UsageError, match="no such model"):
        Run([FakeNode("a", begin=UsageError("no such model"))]).go()


@pytest.mark.parametrize("name", ["python", "ray", "ultimate-embedder"])
def test_another_version_is_refused_with_the_difference(name: str) -> None:
    run = Run([FakeNode("a", facts=facts(version={name: "0.0.1"})), FakeNode("b")]).go()
    run.check()
    assert f"{name} is 0.0.1 there and {versions()[name]} here" in run.roster.refusals["node-1"]


def test_nodes_of_two_precisions_are_refused_before_anything_is_computed() -> None:
    nodes = [FakeNode("a", facts=facts("cuda:0", has_ceiling=True, dtype=dtype)) for dtype in ("float16", "bfloat16")]
    nodes[1].id = "b"
    with pytest.raises(UsageError, match=r"node-1 computes in float16, node-2 computes in bfloat16.*--precision"):
        Run(nodes).go()


def test_a_node_without_cards_is_left_out_where_others_have_them() -> None:
    run = Run([FakeNode("a", facts=facts("cuda:0", has_ceiling=True)), FakeNode("b")]).go()
    run.check()
    assert list(run.roster.refusals) == ["node-2"]


@pytest.mark.parametrize("seed", range(60))
def test_random_faults_lose_nothing_and_double_nothing(seed: int) -> None:
    dice = random.Random(seed)

    answers: Counter[str] = Counter()

    def fate(unit: Unit) -> str:
        found = dice.choices(["done", "dies", "answer lost", "half", "frozen"], [80, 6, 6, 6, 2])[0]
        answers[unit.id] += found == "answer lost"
        return found if answers[unit.id] < MOST_ERRORS else "done"  # more would be the error of the run

    nodes = [FakeNode(f"n{number}", rounds=dice.randrange(4), fate=fate) for number in range(dice.randint(2, 5))]
    run = Run(nodes, texts=120, seed=seed, passes=dice.choice([1, 2]), node_s=10.0**6)

    def shake() -> None:
        node = dice.choice(nodes)
        if dice.random() < 0.1 and sum(each.alive for each in nodes) > 1:
            node.alive = False
        elif dice.random() < 0.3:
            node.alive = True
        if dice.random() < 0.05:
            nodes.append(FakeNode(f"late{len(nodes)}", fate=fate))
            run.cluster.nodes = nodes

    run.during = shake
    run.go()
    assert not run.rejected
    run.check()
