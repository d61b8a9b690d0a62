"""The hub moved on: pinned commits, and refreshing the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.models.hub.conftest import MachineHere
from tests.support.hub_server import HubServer
from tests.support.machine import (
    GET_WEIGHTS,
    HUB_ID,
    KEY,
    ColdRun,
    Machine,
    RunHere,
    assert_holds,
    moved,
)
from ultimate_embedder.models import registry


def pin(commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pin KEY to a commit."""
    pinned = (replace(spec, revision=commit) if spec.key == KEY else spec for spec in registry.MODELS)
    monkeypatch.setattr(registry, "MODELS", tuple(pinned))


def test_a_pinned_commit_that_the_hub_does_not_have_is_not_asked_for_again(
    machine_here: MachineHere, hub: HubServer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish(HUB_ID, model)
    pin("0" * 40, monkeypatch)
    done = machine_here.pull()
    assert done.code == 1
    for words in (KEY, "0" * 40):
        assert words in done.err
    assert (done.retries, "Traceback" in done.err) == ([], False)


def test_a_pinned_commit_is_fetched_though_the_hub_moved_on(
    machine_here: MachineHere, hub: HubServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.publish(HUB_ID, model)
    newest = hub.publish(HUB_ID, moved(model, tmp_path / "moved"))
    pin(commit, monkeypatch)
    done = machine_here.pull()
    assert done.code == 0, done.err
    assert_holds(machine_here.snapshot(commit), model)
    assert not machine_here.snapshot(newest).exists()


def test_a_refresh_notices_a_moved_commit(
    cold: ColdRun, machine: Machine, hub_here: HubServer, run_here: RunHere, model: Path, reference: np.ndarray
) -> None:
    commit = hub_here.publish(HUB_ID, moved(model, machine.folder / "moved"))
    machine.with_cache_of(cold.machine)
    (entry,) = run_here(machine.embedding("--refresh-cache", "--cache-dir", machine.cache)).models
    assert (entry["source"], entry["revision"]) == ("refresh", commit)
    for old_or_new in (cold.commit[:7], commit[:7]):
        assert old_or_new in entry["note"]
    assert np.abs(machine.vectors() - reference).max() > 0.01
    assert hub_here.asked(GET_WEIGHTS) == []  # the weights are the same, and are here


def test_a_refresh_says_that_nothing_changed(
    cold: ColdRun, machine: Machine, hub_here: HubServer, run_here: RunHere, cold_files: Path
) -> None:
    commit = hub_here.publish(HUB_ID, cold_files)
    machine.with_cache_of(cold.machine)
    (entry,) = run_here(machine.embedding("--refresh-cache", "--cache-dir", machine.cache)).models
    assert (entry["source"], entry["revision"], commit) == ("refresh", cold.commit, cold.commit)
    assert "unchanged" in entry["note"]
    assert hub_here.asked("resolve") == []


def test_a_pull_says_whether_a_refresh_found_a_newer_commit(
    pulled: Machine, machine_here: MachineHere, hub: HubServer, sharded: Path
) -> None:
    commit = hub.publish(HUB_ID, sharded)
    done = machine_here.with_cache_of(pulled).pull("--refresh-cache")
    assert done.code == 0, done.err
    assert commit in done.out
    assert "unchanged" in done.out + done.err
