"""A model that is not in the cache is downloaded: what is fetched, and where it goes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np

from tests.models.hub.conftest import OTHER_FORMATS, MachineHere
from tests.support.hub_server import HubServer
from tests.support.machine import (
    HUB_ID,
    KEY,
    OTHER_KEY,
    WEIGHTS,
    ColdRun,
    Machine,
    assert_holds,
    assert_same_vectors,
)


def test_a_cold_download_gives_the_vectors_of_the_folder(cold: ColdRun, reference: np.ndarray) -> None:
    (entry,) = cold.result.models
    assert (entry["model"], entry["hub_id"], entry["source"]) == (KEY, HUB_ID, "download")
    assert (entry["revision"], entry["retries"]) == (cold.commit, 0)
    assert Path(entry["path"]) == cold.machine.snapshot(cold.commit)
    assert entry["size_bytes"] >= (Path(entry["path"]) / WEIGHTS).stat().st_size
    assert entry["seconds"] > 0
    assert_same_vectors(cold.machine.vectors(), reference)


def test_only_the_needed_files_are_fetched(cold: ColdRun, model: Path) -> None:
    assert not [path for path in cold.paths if path.endswith(OTHER_FORMATS)]
    assert_holds(cold.machine.snapshot(cold.commit), model)


def test_a_part_of_the_model_that_is_a_pickle_is_fetched_only_if_the_model_is_trusted(
    machine_here: MachineHere, hub: HubServer, model: Path, tmp_path: Path
) -> None:
    mixed = Path(shutil.copytree(model, tmp_path / "mixed"))
    (mixed / "2_Dense").mkdir()
    (mixed / "2_Dense" / "config.json").write_text("{}")
    (mixed / "2_Dense" / "pytorch_model.bin").write_bytes(b"weights that only this file has")
    commit = hub.publish(HUB_ID, mixed)
    refused = machine_here.pull()
    assert refused.code == 1
    for words in ("2_Dense/pytorch_model.bin", "pickle", "safetensors", f"--trust-remote-code {KEY}"):
        assert words in refused.err
    assert hub.asked("resolve") == []
    done = machine_here.pull("--trust-remote-code", KEY)
    assert done.code == 0, done.err
    assert (machine_here.snapshot(commit) / "2_Dense" / "pytorch_model.bin").is_file()


def test_a_pull_goes_where_it_is_told(machine: Machine, hub: HubServer, model: Path) -> None:
    commit = hub.publish(HUB_ID, model)
    elsewhere = machine.folder / "elsewhere"
    assert machine.pull("--cache-dir", elsewhere).code == 0
    assert_holds(elsewhere / "models--BAAI--bge-m3" / "snapshots" / commit, model)
    assert not list(machine.cache.glob("models--*"))


def test_the_manifest_names_the_commit_that_an_output_needs(cold: ColdRun) -> None:
    done = cold.machine.run("models", "manifest", cold.machine.folder / "out")
    assert done.code == 0, done.err
    (entry,) = json.loads(done.out)
    (used,) = cold.result.models
    for name in ("model", "hub_id", "revision", "digest"):
        assert entry[name] == used[name]


def test_the_list_shows_what_is_cached(cold: ColdRun) -> None:
    listed = {line.split()[0]: line for line in cold.machine.run("models", "list").out.splitlines()}
    assert "cached" in listed[KEY]
    assert cold.commit[:7] in listed[KEY]
    assert re.search(r"\d [kM]B", listed[KEY])
    assert "cached" not in listed[OTHER_KEY]
    assert cold.commit[:7] not in listed[OTHER_KEY]
