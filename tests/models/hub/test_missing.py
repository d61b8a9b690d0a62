"""A model that is neither in the cache nor to be had."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.hub_server import HubServer, dead
from tests.support.machine import (
    HUB_ID,
    IMPATIENT,
    KEY,
    OTHER_KEY,
    ColdRun,
    Machine,
    RunHere,
    assert_gave_up_in_time,
    assert_same_vectors,
)


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("offline", ["--offline", "HF_HUB_OFFLINE"])
def test_offline_every_missing_model_is_named_before_any_work(
    machine: Machine, run_here: RunHere, offline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if offline == "HF_HUB_OFFLINE":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = ["--offline"] if offline == "--offline" else []
    models = f"{KEY},{OTHER_KEY}"
    done = run_here(machine.embedding(*options, "--cache-dir", machine.cache, models=models))
    assert done.code == 1
    for words in (KEY, OTHER_KEY, str(machine.cache), f"ultimate-embedder models pull {KEY}"):
        assert words in done.err
    assert not (machine.folder / "out" / "docs").exists()


def test_a_pull_asks_nothing_when_the_variables_say_offline(machine: Machine, hub: HubServer, model: Path) -> None:
    hub.publish(HUB_ID, model)
    done = machine.pull(HF_HUB_OFFLINE="1")
    assert done.code == 1
    for words in (KEY, str(machine.cache)):
        assert words in done.err
    assert hub.requests == []


def test_a_missing_companion_can_be_gone_without(
    cold: ColdRun, machine: Machine, run_here: RunHere, reference: np.ndarray
) -> None:
    options = ["--offline", "--allow-missing-companions", "--cache-dir", cold.machine.cache]
    done = run_here(machine.embedding(*options, models=f"{KEY}=1,{OTHER_KEY}=3"))
    (entry,) = done.models
    assert (entry["model"], entry["weight"]) == (KEY, 1.0)
    summary = json.loads(done.out)
    assert OTHER_KEY in " ".join(summary["warnings"] + summary["collections"][0]["warnings"])
    assert_same_vectors(machine.vectors(), reference)


def test_a_dead_hub_and_a_cold_cache_end_in_a_clear_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path, dead())
    done = machine.run(*[word for word in machine.embedding() if word != "--quiet"], **IMPATIENT)
    assert done.code == 1
    assert_gave_up_in_time(done)
    for words in (KEY, machine.hub):
        assert words in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out" / "docs").exists()


def test_a_model_that_the_hub_does_not_have_is_not_asked_for_again(machine: Machine, hub: HubServer) -> None:
    done = machine.pull()
    assert done.code == 1
    assert HUB_ID in done.err
    assert (done.retries, "Traceback" in done.err) == ([], False)
    assert len(hub.asked(HUB_ID)) == 1
