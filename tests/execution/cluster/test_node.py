"""What runs on a node, without Ray: a tiny model on the CPU, fed with units."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder.config import HubAccess, RunConfig
from ultimate_embedder.errors import ModelError, UsageError
from ultimate_embedder.events import BatchEncoded, LeaseReleased, ModelLoaded, Warned
from ultimate_embedder.execution.cluster.connection import require_ray
from ultimate_embedder.execution.cluster.node import Node
from ultimate_embedder.execution.cluster.renamed import of_node
from ultimate_embedder.execution.cluster.shared_output import adopt_leftovers, adopt_unit
from ultimate_embedder.execution.cluster.units import PassOrder, Unit, cut_units
from ultimate_embedder.models import ModelFiles, Receiver, find_shipped, list_files, load_encoder, resolve_model
from ultimate_embedder.options import make_config
from ultimate_embedder.planning import PassPlan, Rows, plan_passes
from ultimate_embedder.vectors import VectorStore

TEXTS = tuple(f"{number} {'a chunk of text ' * (number % 9)}" for number in range(40))


class Texts:
    keys = np.array([[number, 7] for number in range(len(TEXTS))], np.uint64)

    def count(self, rows: Rows) -> int:
        return len(TEXTS)

    def read(self, rows: Rows):  # type: ignore[no-untyped-def]
        yield self.keys, list(TEXTS)


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_model("bert", layers=1)


@pytest.fixture
def config(model: Path, tmp_path: Path) -> RunConfig:
    (tmp_path / "chunks").mkdir()
    return make_config(
        tmp_path / "chunks",
        tmp_path / "out",
        models=str(model),
        devices="cpu",
        offline=True,
        cache_dir=tmp_path / "hub",
    )


def plan_for(config: RunConfig) -> PassPlan:
    found = resolve_model(config.models[0].name, config.hub)
    return plan_passes(config, [(config.models[0], found)], "float32", on_cpu=True)[0]


def order_for(plan: PassPlan, **changed: object) -> PassOrder:
    return replace(PassOrder(plan, str(plan.model.path), "docs", len(TEXTS), 0), **changed)  # type: ignore[arg-type]


def units_of(plan: PassPlan, size: int = 8) -> list[Unit]:
    return list(cut_units(Texts(), Rows(0, len(TEXTS)), plan, size))


def test_two_units_at_a_time_give_the_vectors_of_their_texts(config: RunConfig, model: Path) -> None:
    plan, node = plan_for(config), Node(config, cores=1)
    facts = node.describe()
    assert [device.facts.name for device in facts.devices] == ["cpu"]
    begun = node.begin(order_for(plan))
    assert begun.dim == 64
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(node.encode, units_of(plan)))
    assert [result.texts for result in results] == [8] * 5
    keys = np.concatenate([result.keys for result in results])
    vectors = np.concatenate([result.vectors for result in results])
    reference = load_encoder(plan.model, "float32", "cpu").model.encode(list(TEXTS), normalize_embeddings=True)
    order = np.argsort(keys[:, 0])
    np.testing.assert_allclose(vectors[order], reference, atol=1e-5)
    events = [*(event for result in results for event in result.events), *node.finish()]
    assert sum(event.rows for event in events if isinstance(event, BatchEncoded)) == len(TEXTS)
    assert any(isinstance(event, LeaseReleased) for event in events)


def test_the_id_of_a_unit_depends_on_the_pass_and_the_texts_alone(config: RunConfig) -> None:
    plan = plan_for(config)
    first, again = units_of(plan), units_of(plan)
    assert [unit.id for unit in first] == [unit.id for unit in again]
    other = replace(plan, identity=replace(plan.identity, dtype="float16"))
    assert not {unit.id for unit in first} & {unit.id for unit in units_of(other)}
    assert len({unit.id for unit in first}) == len(first)


def test_long_texts_close_a_unit_early(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultimate_embedder.execution.cluster.units.UNIT_CHARACTERS", 300)
    sizes = [len(unit) for unit in units_of(plan_for(config), size=100)]
    assert sum(sizes) == len(TEXTS)
    assert len(sizes) > 5


def test_a_stop_gives_what_there_is_of_a_unit(config: RunConfig) -> None:
    plan, node = plan_for(config), Node(config, cores=1)
    node.begin(order_for(plan))
    node.stop("enough")
    result = node.encode(units_of(plan, 40)[0])
    assert result.texts == len(result.keys) < 40
    assert node.finish() is not None


def test_a_pass_that_was_not_begun_is_an_error(config: RunConfig) -> None:
    plan, node = plan_for(config), Node(config, cores=1)
    with pytest.raises(RuntimeError, match="not begun"):
        node.encode(units_of(plan)[0])


def test_other_files_of_a_model_are_refused_with_both_digests(config: RunConfig, model: Path, tmp_path: Path) -> None:
    plan = plan_for(config)
    other = replace(plan, model=replace(plan.model, digest="f" * 64))
    with pytest.raises(ModelError, match=r"has other files on this node .*--ship-models"):
        Node(config, cores=1).begin(order_for(other))


def test_a_model_that_a_node_does_not_have_is_sent_and_used_again(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ultimate_embedder.models.shipped.PIECE_BYTES", 1000)
    monkeypatch.setattr("ultimate_embedder.execution.cluster.node.PIECE_BYTES", 1000)
    plan = plan_for(config)
    order = replace(order_for(plan), source="/nowhere/model")
    with pytest.raises(ModelError):
        Node(config, cores=1).begin(order)
    node = Node(config, cores=1)
    node.begin(replace(order, shipper=ModelFiles(plan.model)))
    assert node.encode(units_of(plan)[0]).texts == 8
    assert find_shipped(plan.model, config.hub) is not None
    Node(config, cores=1).begin(order)  # it is there now


def test_a_sent_model_that_is_damaged_is_not_used(config: RunConfig) -> None:
    plan = plan_for(config)
    shipper = ModelFiles(plan.model)
    receiver = Receiver(plan.model.digest, shipper.files(), config.hub)
    for file in shipper.files():
        receiver.add(file.name, 0, bytes(file.size_bytes))
    with pytest.raises(ModelError, match="arrived damaged"):
        receiver.finish()
    assert find_shipped(plan.model, config.hub) is None


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b"])
def test_a_sent_file_cannot_leave_its_folder(config: RunConfig, name: str) -> None:
    plan = plan_for(config)
    files = [replace(file, name=name) for file in list_files(plan.model.path)[:1]]
    with pytest.raises(ModelError, match="was sent with a file"):
        Receiver(plan.model.digest, files, config.hub)
    with pytest.raises(ModelError, match="asked for"):
        ModelFiles(plan.model).piece(name, 0)


def test_a_shipped_model_that_was_changed_is_deleted(config: RunConfig, tmp_path: Path) -> None:
    plan, access = plan_for(config), HubAccess(cache_dir=tmp_path / "hub", offline=True)
    folder = tmp_path / "hub" / "ultimate-embedder-shipped" / plan.model.digest
    shutil.copytree(plan.model.path, folder)
    assert find_shipped(plan.model, access) is not None
    (folder / "config.json").write_text("{}")
    assert find_shipped(plan.model, access) is None
    assert not folder.exists()


def test_vectors_written_to_a_shared_output_become_shards_of_the_store(config: RunConfig, tmp_path: Path) -> None:
    plan = plan_for(config)
    store = VectorStore(tmp_path / "store", plan.identity)
    node = Node(config, cores=1)
    node.begin(order_for(plan, store=str(store.folder)))
    results = [node.encode(unit) for unit in units_of(plan)]
    assert all(result.vectors is None and result.shard is not None for result in results)
    adopted = results[:2]
    assert [adopt_unit(store, result.shard) for result in adopted if result.shard] == [None, None]
    # the driver is killed: the next one adopts the rest
    again = VectorStore(tmp_path / "store", plan.identity)
    assert list(adopt_leftovers(again)) == []
    assert again.holds(Texts.keys).all()
    assert len(again.keys()) == len(TEXTS)
    assert not (again.folder / "units").exists()


def test_a_damaged_file_of_a_shared_output_is_told_and_computed_again(config: RunConfig, tmp_path: Path) -> None:
    plan = plan_for(config)
    store = VectorStore(tmp_path / "store", plan.identity)
    node = Node(config, cores=1)
    node.begin(order_for(plan, store=str(store.folder)))
    first, second = (node.encode(unit) for unit in units_of(plan)[:2])
    for result in (first, second):
        assert result.shard is not None
        path = store.folder / "units" / result.shard.name
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    (problem,) = [adopt_unit(store, first.shard)] if first.shard else [None]
    assert "checksum" in str(problem)
    assert ["checksum" in each for each in adopt_leftovers(store)] == [True]
    assert store.is_empty


def test_events_of_a_node_carry_its_name_and_our_time(config: RunConfig) -> None:
    plan, node = plan_for(config), Node(config, cores=1)
    node.begin(order_for(plan))
    (event, *_) = (each for each in node.encode(units_of(plan)[0]).events if isinstance(each, BatchEncoded))
    renamed = of_node(event, "node-3", clock_ahead_s=100.0)
    assert isinstance(renamed, BatchEncoded)
    assert (renamed.device, renamed.memory.device) == ("node-3/cpu", "node-3/cpu")
    assert event.began is not None
    assert renamed.began == event.began - 100
    assert renamed.lease_id == f"node-3/{event.lease_id}"
    warned = of_node(Warned(message="it is hot"), "node-3")
    assert isinstance(warned, Warned)
    assert warned.message == "node-3: it is hot"
    assert not [each for each in node.finish() if isinstance(each, ModelLoaded) and of_node(each, "node-3")]


def test_without_ray_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'ultimate-embedder\[ray\]'"):
        require_ray()


def test_nothing_imports_ray_unless_it_is_asked_for() -> None:
    program = (
        "import sys; import ultimate_embedder.cli, ultimate_embedder.pipeline; "
        "import ultimate_embedder.execution.cluster.executor; sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ray_address": "auto"}, "--ray-address is for --engine ray"),
        ({"ship_models": True}, "--ship-models is for --engine ray"),
        ({"engine": "ray", "ray_nodes": 2}, "--ray-nodes is for a cluster that is started here"),
        ({"engine": "ray", "ray_address": "somewhere"}, "write auto, local, or HOST:PORT"),
        ({"engine": "ray", "ray_address": "ray://head:10001"}, "Ray Client is not supported"),
        ({"engine": "spark"}, "local, ray"),
        ({"engine": "ray", "ray_address": "local", "ray_nodes": 0}, "--ray-nodes 0"),
    ],
)
def test_options_of_a_cluster_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    (tmp_path / "chunks").mkdir()
    with pytest.raises(UsageError) as caught:
        make_config(tmp_path / "chunks", tmp_path / "out", **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
