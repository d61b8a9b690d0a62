"""Damaged files in the cache are found and fetched again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.hub_server import HubServer
from tests.support.machine import (
    HUB_ID,
    KEY,
    Machine,
    RunHere,
    assert_holds,
)


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_shard_is_found_out_and_fetched_again(
    pulled: Machine, machine: Machine, run_here: RunHere, hub: HubServer, sharded: Path, damage: str
) -> None:
    commit = hub.publish(HUB_ID, sharded)
    shard = sorted(machine.with_cache_of(pulled).snapshot(commit).glob("model-*.safetensors"))[1]
    blob = shard.resolve()
    if damage == "missing":
        blob.unlink()
        shard.unlink(missing_ok=True)
    else:
        os.truncate(blob, blob.stat().st_size - 1000)

    offline = run_here(machine.embedding("--offline", "--cache-dir", machine.cache))
    assert offline.code == 1
    for words in (KEY, shard.name):
        assert words in offline.err
    assert hub.requests == []
    assert not (machine.folder / "out" / "docs").exists()

    online = machine.pull()
    assert online.code == 0, online.err
    assert_holds(machine.snapshot(commit), sharded)
    assert {Path(request.path).name for request in hub.asked("GET .*/resolve/")} == {shard.name}


def test_verify_is_content_with_a_whole_model(pulled: Machine) -> None:
    done = pulled.run("models", "verify")
    assert (done.code, KEY in done.out) == (0, True)


@pytest.mark.parametrize("name", ["model-00002-*.safetensors", "tokenizer.json"])
def test_verify_finds_a_flipped_byte(pulled: Machine, machine: Machine, name: str) -> None:
    (file,) = machine.with_cache_of(pulled).cache.glob(f"models--BAAI--bge-m3/snapshots/*/{name}")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.resolve().write_bytes(content)
    done = machine.run("models", "verify", KEY)
    assert done.code == 1
    assert file.name in done.out + done.err
    for whole in ("config.json", "model-00001"):
        assert whole not in (done.out + done.err).replace("tokenizer_config.json", "")


def test_verify_of_a_model_that_is_not_there_fails(machine: Machine, hub: HubServer) -> None:
    done = machine.run("models", "verify", KEY)
    assert (done.code, KEY in done.out + done.err) == (1, True)
    assert hub.requests == []
