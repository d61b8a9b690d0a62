"""Downloads that were interrupted, killed, or run twice at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.hub.conftest import OLD_CLIENT, MachineHere
from tests.support.clock import HANG_S, wait_until
from tests.support.hub_server import Fault, HubServer
from tests.support.machine import (
    GET_WEIGHTS,
    HUB_ID,
    KEY,
    WEIGHTS,
    Machine,
    assert_holds,
)
from tests.support.slow import slow


@pytest.mark.parametrize(("client", "then"), [("installed", "503"), slow("installed", ""), (OLD_CLIENT, "")])
def test_a_large_file_that_was_cut_is_resumed(
    machine: Machine, hub: HubServer, large: Path, client: str, then: str, request: pytest.FixtureRequest
) -> None:
    commit = hub.publish(HUB_ID, large)
    hub.faults = [Fault(GET_WEIGHTS, truncate=24 << 20)] + ([Fault(GET_WEIGHTS, status=503)] if then else [])
    done = machine.pull(**{} if client == "installed" else {"PYTHONPATH": request.getfixturevalue("old_client")})
    assert done.code == 0, done.err
    assert_holds(machine.snapshot(commit), large)
    last = hub.asked(GET_WEIGHTS)[-1]
    # the hub client writes blocks of 10 MiB: what was not written yet may be lost
    assert (last.status, last.range) in ((206, f"bytes={20 << 20}-"), (206, f"bytes={24 << 20}-"))


def test_an_interrupted_download_is_no_cached_model(
    machine: Machine, machine_here: MachineHere, hub: HubServer, model: Path
) -> None:
    commit = hub.publish(HUB_ID, model)
    hub.faults = [Fault(GET_WEIGHTS, truncate=400_000, delay_s=HANG_S)]
    killed = machine.start("models", "pull", KEY)
    wait_until(lambda: hub.asked(GET_WEIGHTS) and list(machine.cache.rglob("*.incomplete")))
    killed.kill()
    killed.communicate()

    offline = machine_here.embed("--offline")
    assert offline.code == 1
    for words in (KEY, WEIGHTS, "ultimate-embedder models pull"):
        assert words in offline.err
    assert not (machine.folder / "out" / "docs").exists()
    assert machine_here.run("models", "verify", KEY).code == 1

    online = machine_here.pull()
    assert online.code == 0, online.err
    assert_holds(machine.snapshot(commit), model)


def test_two_pulls_at_once_do_not_get_in_each_others_way(
    machine: Machine, machine_here: MachineHere, hub: HubServer, model: Path
) -> None:
    commit = hub.publish(HUB_ID, model)
    hub.faults = [Fault(GET_WEIGHTS, delay_s=0.5, times=2)]
    both = [machine.start("models", "pull", KEY) for _ in range(2)]
    said = [process.communicate(timeout=HANG_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert_holds(machine.snapshot(commit), model)
    assert machine_here.run("models", "verify", KEY).code == 0
