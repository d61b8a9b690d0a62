"""A run that goes on in a fresh process, from the command line and from scripts: one story, told once."""

from __future__ import annotations

import errno
import fcntl
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.support.clock import HANG_S, wait_until
from tests.support.faults import (
    ILLEGAL_ACCESS,
    LAUNCH_FAILURE,
    OFF_THE_BUS,
    TEXTS,
    embed_command,
    events_of,
    run_with,
    start,
    stored_rows,
    vectors_of,
    write_texts,
)
from tests.support.slow import slow
from tests.support.tiny_models import tiny_model
from ultimate_embedder.errors import OutputError
from ultimate_embedder.lock import hold_output
from ultimate_embedder.output import HELD_NAME

SCRIPT = """
import ultimate_embedder
summary = ultimate_embedder.embed({chunks!r}, {output!r}, models={model!r}, {options})
print("ended:", summary.collections[0].status, len(summary.collections[0].passes))
"""
WITHOUT_LOCKS = """
import errno, fcntl, sys
from ultimate_embedder.cli import run

def flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")

fcntl.flock = flock
sys.exit(run())
"""


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def model() -> str:
    return str(tiny_model("bert"))


@pytest.fixture(scope="module")
def reference(chunks: Path, model: str, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    output = tmp_path_factory.mktemp("reference")
    run_with(chunks, output, models=model, devices="cpu")
    return vectors_of(output)


def counted(output: Path) -> dict[str, int]:
    if not (output / "events.jsonl").exists():
        return {"fresh_process": 0}
    names = [event.get("kind") or event["event"] for event in events_of(output)]
    return {name: names.count(name) for name in ("RunStarted", "RunFinished", "fresh_process", "device_lost")}


def test_the_command_goes_on_by_itself(chunks: Path, model: str, reference: np.ndarray, tmp_path: Path) -> None:
    process = start(*embed_command(chunks, tmp_path, model, "--json"), faults=f"0@400!={ILLEGAL_ACCESS}")
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    summary = json.loads(out)
    (collection,) = summary["collections"]
    (current,) = collection["passes"]
    assert (collection["status"], current["encoded_texts"], current["stored_texts"]) == ("completed", TEXTS, 0)
    assert counted(tmp_path) == {"RunStarted": 1, "RunFinished": 1, "fresh_process": 1, "device_lost": 2}
    assert stored_rows(tmp_path) == TEXTS
    assert err.count("a fresh process goes on") == 1
    np.testing.assert_allclose(vectors_of(tmp_path), reference, atol=1e-5)


@pytest.mark.slow
def test_a_card_that_dies_twice_is_left_out(chunks: Path, model: str, reference: np.ndarray, tmp_path: Path) -> None:
    # the second process loses both cards too: 0 for the second time, with 1; nothing is left for a third
    faults = f"0@400!={ILLEGAL_ACCESS}|0@400!={LAUNCH_FAILURE}"
    process = start(*embed_command(chunks, tmp_path, model, "--json"), faults=faults)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    (collection,) = json.loads(out)["collections"]
    kinds = [each["type"] for each in collection["mitigations"]]
    assert (kinds.count("fresh_process"), kinds.count("device_lost"), kinds.count("no_device_left")) == (1, 4, 1)
    assert collection["passes"][0]["tokens_by_device"].keys() == {"simulated:0", "simulated:1", "cpu"}
    assert stored_rows(tmp_path) == TEXTS
    np.testing.assert_allclose(vectors_of(tmp_path), reference, atol=1e-5)


@pytest.mark.slow
def test_the_memory_that_the_process_before_holds_is_not_free_in_the_fresh_one(
    chunks: Path, model: str, reference: np.ndarray, tmp_path: Path
) -> None:
    # what a lost card holds of a process is released when that process ends, not before
    command = embed_command(chunks, tmp_path, model, "--devices", "simulated:2x14MiB")
    process = start(*command, faults=f"0@400!={ILLEGAL_ACCESS}")
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    leases = [event["memory"] for event in events_of(tmp_path) if event["event"] == "LeaseAcquired"]
    held = [[memory["external_bytes"] for memory in lease] for lease in leases]
    assert held[0] == [0, 0]
    assert all(each > 0 for each in held[-1])
    assert counted(tmp_path)["fresh_process"] == 1
    np.testing.assert_allclose(vectors_of(tmp_path), reference, atol=1e-5)


@pytest.mark.slow
def test_a_card_that_has_another_number_in_the_fresh_process_is_used(
    chunks: Path, model: str, reference: np.ndarray, tmp_path: Path
) -> None:
    # the second card dies, and then the first falls off the bus: without the first, the second is number 0
    faults = f"1@300={LAUNCH_FAILURE},0@600={OFF_THE_BUS}|0-"
    process = start(*embed_command(chunks, tmp_path, model, "--json"), faults=faults)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    (collection,) = json.loads(out)["collections"]
    kinds = [each["type"] for each in collection["mitigations"]]
    assert (kinds.count("fresh_process"), kinds.count("no_device_left")) == (1, 0)
    assert "could not go on" not in err
    np.testing.assert_allclose(vectors_of(tmp_path), reference, atol=1e-5)


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_not_run_twice(chunks: Path, model: str, tmp_path: Path) -> None:
    options = "devices='simulated:2x64MiB', precision='fp32', batch_tokens=512, exports='npy', quiet=True"
    script = SCRIPT.format(chunks=str(chunks), output=str(tmp_path), model=model, options=options)
    process = start("-", faults=f"0@400!={ILLEGAL_ACCESS}", stdin=subprocess.PIPE)
    out, err = process.communicate(script, timeout=HANG_S)
    assert (process.returncode, out) == (0, "ended: completed 1\n"), err
    assert counted(tmp_path)["fresh_process"] == 1


@pytest.mark.parametrize(
    "program", [["-m", "ultimate_embedder"], slow(["-c", WITHOUT_LOCKS])], ids=["flock", "heartbeat"]
)
def test_nobody_else_can_write_to_the_output_even_if_only_the_child_is_left(
    chunks: Path, model: str, tmp_path: Path, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the second process waits for its devices
    command = [*program, *embed_command(chunks, tmp_path, model)[2:]]
    process = start(*command, faults=f"0@400!={ILLEGAL_ACCESS}|0@200~,1@200~")
    if WITHOUT_LOCKS in program:
        monkeypatch.setattr(fcntl, "flock", no_flock)
    wait_until(lambda: counted(tmp_path)["fresh_process"] and psutil.Process(process.pid).children())
    (child,) = psutil.Process(process.pid).children()
    try:
        assert f"in use by process {process.pid}" in refusal(tmp_path)
        wait_until(lambda: WITHOUT_LOCKS not in program or f"[{child.pid}," in (tmp_path / HELD_NAME).read_text())
        child.suspend()
        process.kill()
        process.wait()
        assert "in use by" in refusal(tmp_path)
    finally:
        child.kill()
        process.kill()


def no_flock(*_: Any) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def refusal(output: Path) -> str:
    with pytest.raises(OutputError) as caught, hold_output(output):
        pass
    return str(caught.value)


@pytest.mark.slow
def test_a_stop_reaches_the_child(chunks: Path, model: str, reference: np.ndarray, tmp_path: Path) -> None:
    process = start(*embed_command(chunks, tmp_path, model, "--json"), faults=f"0@400!={ILLEGAL_ACCESS}")
    wait_until(lambda: counted(tmp_path)["fresh_process"])
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 3, err
    (collection,) = json.loads(out)["collections"]
    assert collection["status"] == "partial"
    assert "interrupted by SIGTERM" in collection["error"]
    resumed = run_with(chunks, tmp_path, models=model, devices="simulated:2x64MiB", batch_tokens=512)
    assert (resumed.collections[0].status, stored_rows(tmp_path)) == ("completed", TEXTS)
    np.testing.assert_allclose(vectors_of(tmp_path), reference, atol=1e-5)


@pytest.mark.slow
def test_a_hanging_card_does_not_keep_the_process_from_ending(chunks: Path, model: str, tmp_path: Path) -> None:
    process = start(*embed_command(chunks, tmp_path, model, "--stall-timeout", "5s"), faults="1@400~")
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 3, err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["collections"][0]["status"] == "partial"
    # which card is named is tested where the clock is the test's: on a busy machine the other may be slow too
    assert "has not finished a batch for" in summary["collections"][0]["error"]
    assert 0 < stored_rows(tmp_path) < TEXTS
