"""A model that is in the cache causes no request, whatever the hub does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.hub.conftest import MachineHere
from tests.support.hub_here import use_hub_here
from tests.support.hub_server import HubServer, dead
from tests.support.machine import (
    HUB_ID,
    ColdRun,
    Machine,
    RunHere,
    assert_same_vectors,
    moved,
)


def test_a_warm_start_asks_nothing_and_does_not_notice_a_moved_commit(
    cold: ColdRun, machine_here: MachineHere, hub: HubServer, model: Path, reference: np.ndarray, tmp_path: Path
) -> None:
    hub.publish(HUB_ID, moved(model, tmp_path / "moved"))
    (entry,) = machine_here.with_cache_of(cold.machine).embed().models
    assert hub.requests == []
    assert (entry["source"], entry["revision"], entry["retries"]) == ("cache", cold.commit, 0)
    assert_same_vectors(machine_here.vectors(), reference)


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("offline", ["", "--offline", "HF_HUB_OFFLINE"])
def test_a_warm_start_opens_no_socket_and_looks_up_no_name(
    cold: ColdRun,
    machine: Machine,
    run_here: RunHere,
    reference: np.ndarray,
    offline: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if offline == "HF_HUB_OFFLINE":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    options = ["--offline"] if offline == "--offline" else []
    (entry,) = run_here(machine.embedding(*options, "--cache-dir", cold.machine.cache)).models
    assert (entry["source"], entry["revision"]) == ("cache", cold.commit)
    assert_same_vectors(machine.vectors(), reference)


def test_a_dead_hub_does_not_disturb_a_warm_start(
    cold: ColdRun, tmp_path: Path, run_here: RunHere, reference: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, dead())
    use_hub_here(machine.hub, machine.folder, monkeypatch)
    (entry,) = run_here(machine.embedding("--cache-dir", cold.machine.cache)).models
    assert (entry["source"], entry["revision"], entry["retries"]) == ("cache", cold.commit, 0)
    assert_same_vectors(machine.vectors(), reference)


def test_a_pull_of_a_cached_model_asks_nothing(cold: ColdRun, machine_here: MachineHere, hub: HubServer) -> None:
    done = machine_here.with_cache_of(cold.machine).pull()
    assert done.code == 0, done.err
    assert hub.requests == []
