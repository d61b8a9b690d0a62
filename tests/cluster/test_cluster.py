"""The same command on a Ray cluster: two nodes of one core on this machine, real processes, real faults."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.cluster.conftest import TEXTS
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.poisoned import POISON, PoisonedNode
from tests.cluster.runs import (
    Recorded,
    config_for,
    embed_on,
    largest_difference,
    stored_rows,
    worst_cosine,
    write_texts,
)
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.errors import UsageError
from ultimate_embedder.events import BatchEncoded, ChunkRejected, CollectionFinished, Event, Mitigated
from ultimate_embedder.execution.cluster import ray_cluster
from ultimate_embedder.stop import StopSwitch

CLOSE = 1e-5


def statuses(recorded: Recorded) -> list[tuple[str, str | None]]:
    return [(event.status, event.error) for event in recorded.of(CollectionFinished)]


def kinds(recorded: Recorded) -> list[str]:
    return [event.kind for event in recorded.of(Mitigated)]


def is_batch_of(node: str, batches: int = 1) -> Any:
    count = iter(range(batches - 1, -1, -1))
    return lambda event: isinstance(event, BatchEncoded) and event.device.startswith(f"{node}/") and next(count) == 0


def test_the_real_model_gives_the_vectors_of_a_local_run(
    cluster: LocalCluster, tmp_path: Path, write_chunks: Any
) -> None:
    chunks = write_texts(tmp_path, 150)
    embed(chunks, tmp_path / "local", devices="cpu", exports="none")
    recorded = Recorded()
    embed_on(config_for(chunks, tmp_path / "ray", cluster.address), recorded)
    assert statuses(recorded) == [("completed", None)]
    assert largest_difference(tmp_path / "ray", tmp_path / "local") < CLOSE
    assert stored_rows(tmp_path / "ray")[:2] == (150, 0)
    assert {event.device for event in recorded.of(BatchEncoded)} == {"node-1/cpu", "node-2/cpu"}


def test_a_process_is_killed_a_node_lost_and_another_joins_late(
    cluster: LocalCluster, texts: Path, model: Path, reference: Path, tmp_path: Path
) -> None:
    recorded = Recorded()

    def lose_a_node(event: Event) -> None:
        cluster.add()
        cluster.remove(cluster.find(recorded.id_of("node-1")))

    recorded.on(is_batch_of("node-2"), lambda event: cluster.signal_worker(recorded.id_of("node-2"), signal.SIGKILL))
    recorded.on(is_batch_of("node-1", 3), lose_a_node)
    embed_on(config_for(texts, tmp_path / "out", cluster.address, models=str(model)), recorded)
    assert statuses(recorded) == [("completed", None)]
    assert stored_rows(tmp_path / "out")[:2] == (TEXTS, 0)
    assert worst_cosine(tmp_path / "out", reference) > 1 - CLOSE
    assert kinds(recorded).count("node_lost") == 2
    assert recorded.nodes == ["node-1", "node-2", "node-3"]


@pytest.mark.slow
def test_a_frozen_process_is_given_up_and_its_texts_done_by_others(
    cluster: LocalCluster, texts: Path, model: Path, reference: Path, tmp_path: Path
) -> None:
    recorded = Recorded()
    recorded.on(is_batch_of("node-2"), lambda event: cluster.signal_worker(recorded.id_of("node-2"), signal.SIGSTOP))
    options = {"models": str(model), "unit_timeout": 8.0}
    embed_on(config_for(texts, tmp_path / "out", cluster.address, **options), recorded)
    assert statuses(recorded) == [("completed", None)]
    assert stored_rows(tmp_path / "out")[:2] == (TEXTS, 0)
    assert worst_cosine(tmp_path / "out", reference) > 1 - CLOSE
    assert "for 8 s" in str(recorded.of(Mitigated))


@pytest.mark.slow
def test_a_text_that_ends_its_process_is_found_and_rejected(
    cluster: LocalCluster, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "Node", PoisonedNode)
    chunks = write_texts(tmp_path, 64, POISON)
    recorded = Recorded()
    embed_on(config_for(chunks, tmp_path / "out", cluster.address, models=str(model)), recorded)
    assert statuses(recorded) == [("completed", None)]
    assert stored_rows(tmp_path / "out")[:2] == (64, 0)
    (rejected,) = recorded.of(ChunkRejected)
    assert rejected.rejected.position == 32
    assert "3 processes that encoded it have ended" in rejected.rejected.reason
    assert {"unit_split", "text_given_up"} <= set(kinds(recorded))


DRIVER = """
import sys
from tests.cluster.runs import Recorded, config_for, embed_on
chunks, output, address, model, shared = sys.argv[1:]
embed_on(config_for(chunks, output, address, models=model, shared_output=shared == "shared"), Recorded())
"""


@pytest.mark.parametrize("shared", ["", pytest.param("shared", marks=pytest.mark.slow)])
def test_a_driver_that_is_killed_is_resumed_by_the_next_one(
    cluster: LocalCluster, texts: Path, model: Path, reference: Path, tmp_path: Path, shared: str
) -> None:
    output = tmp_path / "out"
    words = [str(texts), str(output), cluster.address, str(model), shared]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *words])
    while driver.poll() is None and not list(output.glob("docs/store/*/shard-*")):
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    recorded = Recorded()
    options = {"models": str(model), "shared_output": bool(shared)}
    embed_on(config_for(texts, output, cluster.address, **options), recorded)
    assert statuses(recorded) == [("completed", None)]
    assert stored_rows(output)[:2] == (TEXTS, 0)
    assert worst_cosine(output, reference) > 1 - CLOSE
    assert not list(output.glob("docs/store/*/units"))


@pytest.mark.slow
def test_a_stop_keeps_what_is_done(cluster: LocalCluster, texts: Path, model: Path, tmp_path: Path) -> None:
    recorded, stop = Recorded(), StopSwitch()
    recorded.on(is_batch_of("node-1", 2), lambda event: stop.stop("interrupted by SIGINT"))
    embed_on(config_for(texts, tmp_path / "out", cluster.address, models=str(model)), recorded, stop)
    ((status, error),) = statuses(recorded)
    assert status == "partial"
    assert "interrupted by SIGINT" in str(error)
    assert 0 < stored_rows(tmp_path / "out")[0] < TEXTS


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["simultaneous", "sequential", "exclusive"])
def test_two_models_in_each_mode(cluster: LocalCluster, texts: Path, tmp_path: Path, mode: str) -> None:
    models = f"{tiny_model('bert')},{tiny_model('xlm-roberta')}"
    embed(texts, tmp_path / "local", models=models, devices="cpu", exports="parquet", offline=True, quiet=True)
    recorded = Recorded()
    options = {"models": models, "mode": mode, "exports": "parquet"}
    embed_on(config_for(texts, tmp_path / "ray", cluster.address, **options), recorded)
    assert statuses(recorded) == [("completed", None)]
    here, there = (pq.read_table(tmp_path / name / "docs" / "chunks.parquet") for name in ("local", "ray"))
    for name in (column for column in here.column_names if column.startswith("vector")):
        ours, theirs = (np.array(table[name].to_pylist()) for table in (here, there))
        assert np.abs(ours - theirs).max() < CLOSE
    if mode == "simultaneous":
        first = {event.model: event.device.split("/")[0] for event in reversed(recorded.of(BatchEncoded))}
        assert len(set(first.values())) == 2


@pytest.mark.slow
def test_two_simulated_cards_on_each_node(
    cluster: LocalCluster, texts: Path, model: Path, reference: Path, tmp_path: Path
) -> None:
    recorded = Recorded()
    options = {"models": str(model), "devices": "simulated:2x256MiB", "precision": "fp32"}
    embed_on(config_for(texts, tmp_path / "out", cluster.address, **options), recorded)
    assert statuses(recorded) == [("completed", None)]
    assert {event.device for event in recorded.of(BatchEncoded)} >= {"node-1/simulated:0", "node-2/simulated:0"}
    assert stored_rows(tmp_path / "out")[:2] == (TEXTS, 0)


def test_an_address_where_nothing_answers_is_said_with_what_may_help(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="RAY_AUTH_TOKEN_PATH"):
        embed_on(config_for(texts, tmp_path / "out", "127.0.0.1:1"), Recorded())
