"""The steps of a run as plain values: which passes, which rows, which devices, in what order."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from ultimate_embedder.planning import (
    MODES,
    DeviceRoom,
    MemoryNeed,
    PassPlan,
    Rows,
    Stage,
    StepResult,
    TaskResult,
    Turn,
    plan_stages,
)
from ultimate_embedder.types import PassIdentity, ResolvedModel

GPU0, GPU1 = DeviceRoom("gpu:0", True, 100), DeviceRoom("gpu:1", True, 100)
CPU = DeviceRoom("cpu", False)


def plan(number: int) -> PassPlan:
    name = f"model-{number}"
    model = ResolvedModel(name, None, Path("/models") / name, "folder", "r", "d", 1)
    return PassPlan(number, model, 0.5, PassIdentity(name, "r", "d", "float16", None, None, None))


PLANS = [plan(0), plan(1)]
NEEDS = {number: MemoryNeed(f"model-{number}", 10, 1, 10) for number in (0, 1)}


def stages(mode: str, devices: list[DeviceRoom], waiting: tuple[int, ...] = (0, 1)) -> tuple[Stage, ...]:
    needs = {number: NEEDS[number] for number in waiting}
    return plan_stages(MODES[mode], PLANS, devices, waiting=waiting, needs=needs, cores=4)


def test_exclusive_gives_each_pass_all_devices_for_a_stage_of_its_own() -> None:
    first, second = stages("exclusive", [GPU0, GPU1])
    assert [place.plan.number for place in (*first.places, *second.places)] == [0, 1]
    assert first.places[0].devices == ("gpu:0", "gpu:1")
    (step,) = first.steps(Rows(0, 10))
    assert [(task.plan.number, task.rows) for task in step.tasks] == [(0, Rows(0, 10))]
    assert first.turn is None


def test_sequential_has_one_stage_of_turns_with_a_step_per_pass() -> None:
    (stage,) = stages("sequential", [GPU0, GPU1])
    steps = stage.steps(Rows(0, 10))
    assert [[task.plan.number for task in step.tasks] for step in steps] == [[0], [1]]
    assert stage.turn is not None
    assert all(task.place.devices == ("gpu:0", "gpu:1") for step in steps for task in step.tasks)


def test_simultaneous_has_one_step_with_a_device_per_pass() -> None:
    (stage,) = stages("simultaneous", [GPU0, GPU1])
    (step,) = stage.steps(Rows(0, 10))
    assert [task.place.devices for task in step.tasks] == [("gpu:0",), ("gpu:1",)]
    assert step.lockstep_texts is not None


def test_simultaneous_on_a_cpu_shares_its_cores() -> None:
    (stage,) = stages("simultaneous", [CPU])
    assert [(place.devices, place.cpu_workers) for place in stage.places] == [(("cpu",), 2), (("cpu",), 2)]


def test_a_pass_without_work_takes_no_device_from_the_others() -> None:
    (stage,) = stages("simultaneous", [GPU0, GPU1], waiting=(1,))
    assert stage.places[1].devices == ("gpu:0",)


def test_a_companion_may_move_to_the_other_gpus_but_never_to_the_primarys() -> None:
    third = DeviceRoom("gpu:2", True, 100)
    (stage,) = stages("simultaneous", [GPU0, GPU1, third])
    assert stage.places[0].refuges == ()
    assert stage.places[1].refuges == ("gpu:2",)


@pytest.mark.parametrize("mode", MODES)
def test_steps_are_values_that_can_be_sent(mode: str) -> None:
    for stage in stages(mode, [GPU0, GPU1]):
        assert pickle.loads(pickle.dumps(stage)) == stage
        for step in stage.steps(Rows(0, 10)):
            assert pickle.loads(pickle.dumps(step)) == step


def test_planning_needs_no_torch() -> None:
    code = "import sys, ultimate_embedder.planning; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rows_are_split_without_a_gap() -> None:
    assert list(Rows(3, 10).split(4)) == [Rows(3, 7), Rows(7, 10)]


def test_results_of_a_pass_add_up() -> None:
    total = TaskResult({"gpu:0": 2}, {"gpu:0": 2}) + TaskResult({"gpu:0": 1, "gpu:1": 3}, {"gpu:0": 1, "gpu:1": 2})
    assert total == TaskResult({"gpu:0": 3, "gpu:1": 3}, {"gpu:0": 2, "gpu:1": 2})
    assert total.rows == 6


@pytest.mark.parametrize(
    ("texts", "moving_seconds", "working_seconds", "wanted"),
    [
        (100, 0.0, 10.0, 0),  # weights that move for nothing may move at any time
        (1900, 1.0, 19.0, 1900),  # 5 % as it is
        (1900, 2.0, 19.0, 3800),
        (1900, 0.5, 19.0, 950),
        (100, 10.0, 1.0, 19_000),
        (0, 0.0, 0.0, 0),  # nobody worked
    ],
)
def test_a_turn_is_so_long_that_a_twentieth_of_it_goes_into_moving(
    texts: int, moving_seconds: float, working_seconds: float, wanted: int
) -> None:
    result = StepResult(texts, moving_seconds, working_seconds)
    assert Turn(first_texts=0, multiple_of=1).next_texts([result]) == pytest.approx(wanted, abs=1)
