"""Faults of the hub: retried while they may pass, and told in words when they do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.models.hub.conftest import MachineHere
from tests.support.hub_server import Fault, HubServer
from tests.support.machine import (
    GET_WEIGHTS,
    HUB_ID,
    IMPATIENT,
    KEY,
    SHORT_TIMEOUTS,
    Machine,
    RunHere,
    assert_gave_up_in_time,
    assert_holds,
    assert_same_vectors,
)

FAULTS = {
    "500 of the api": (Fault("GET /api/models", status=500, times=2), "500"),
    "500 of a file": (Fault(GET_WEIGHTS, status=500, times=2), "500"),
    "503 of a look-up": (Fault(r"/resolve/.*/tokenizer\.json", status=503), "503"),
    "hang": (Fault(GET_WEIGHTS, delay_s=60), "ime"),
    "drop": (Fault(GET_WEIGHTS, drop=True), ""),
    "truncation": (Fault(GET_WEIGHTS, truncate=400_000), ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pull_recovers(machine_here: MachineHere, hub: HubServer, model: Path, fault: str) -> None:
    commit = hub.publish(HUB_ID, model)
    expected, reason = FAULTS[fault]
    hub.faults = [injected := dataclasses.replace(expected)]
    done = machine_here.pull()
    assert done.code == 0, done.err
    assert injected.times == 0
    assert_holds(machine_here.snapshot(commit), model)
    assert len(done.retries) >= expected.times, done.err
    assert all(reason in line for line in done.retries)


def test_retry_after_is_honoured(machine_here: MachineHere, hub: HubServer, model: Path) -> None:
    hub.publish(HUB_ID, model)
    hub.faults = [Fault(GET_WEIGHTS, status=429, retry_after="1")]
    done = machine_here.pull()
    assert done.code == 0, done.err
    refused, again = hub.asked(GET_WEIGHTS)
    assert (refused.status, again.status) == (429, 200)
    assert ["429" in line for line in done.retries] == [True], done.err
    assert done.waits_s == [1.0]


def every_fault() -> list[Fault]:
    """One of each kind, each on a file of its own."""
    return [
        Fault("GET /api/models", status=500),
        Fault(r"GET .*/resolve/.*/tokenizer\.json", status=503),
        Fault(r"GET .*/resolve/.*/modules\.json", status=429, retry_after="1"),
        Fault(r"GET .*/resolve/.*/1_Pooling/config\.json", drop=True),
        Fault(r"GET .*/resolve/.*/tokenizer_config\.json", truncate=100, delay_s=60),
        Fault(GET_WEIGHTS, truncate=400_000),
    ]


def test_a_run_through_every_fault_gives_equal_vectors(
    machine: Machine, hub_here: HubServer, run_here: RunHere, model: Path, reference: np.ndarray
) -> None:
    commit = hub_here.publish(HUB_ID, model)
    hub_here.faults = every_fault()
    (entry,) = run_here(machine.embedding("--cache-dir", machine.cache)).models
    assert not [fault for fault in hub_here.faults if fault.times]
    assert (entry["source"], entry["revision"]) == ("download", commit)
    assert_same_vectors(machine.vectors(), reference)
    assert entry["retries"] >= len(hub_here.faults)


def test_the_client_of_kaggle_recovers_from_every_fault(
    machine: Machine, hub: HubServer, model: Path, old_client: str
) -> None:
    commit = hub.publish(HUB_ID, model)
    hub.faults = every_fault()
    done = machine.pull(**SHORT_TIMEOUTS, PYTHONPATH=old_client)
    assert done.code == 0, done.err
    assert not [fault for fault in hub.faults if fault.times]
    assert_holds(machine.snapshot(commit), model)
    assert len(done.retries) >= len(hub.faults), done.err


@pytest.mark.parametrize("where", ["GET /api/models", GET_WEIGHTS])
def test_a_hub_that_never_recovers_ends_in_a_clear_error(
    machine_here: MachineHere, hub: HubServer, model: Path, where: str
) -> None:
    hub.publish(HUB_ID, model)
    hub.faults = [Fault(where, status=500, times=1000)]
    done = machine_here.pull(**IMPATIENT)
    assert_gave_up_in_time(done)
    assert (done.code, "Traceback" in done.err) == (1, False)
    assert done.retries
    last = done.err.splitlines()[-1]
    for words in (KEY, hub.url, "500"):
        assert words in last
