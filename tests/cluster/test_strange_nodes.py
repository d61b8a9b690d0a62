"""Nodes that lack something: the package, or the model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import TEXTS
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.runs import Recorded, config_for, embed_on, stored_rows, worst_cosine
from tests.cluster.test_cluster import CLOSE, statuses
from ultimate_embedder import embed
from ultimate_embedder.events import NodeRefused
from ultimate_embedder.models import resolve_model

pytestmark = pytest.mark.slow
HUB_ID, REVISION = "somebody/tiny", "0123456789" * 4
WITHOUT_US = """
import sys


class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ultimate_embedder":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
"""


def test_a_node_without_the_package_is_refused_and_the_others_do_its_work(
    cluster: LocalCluster, texts: Path, model: Path, reference: Path, tmp_path: Path
) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(WITHOUT_US)
    node = cluster.add(PYTHONPATH=str(tmp_path / "hidden"))
    recorded = Recorded()
    try:
        embed_on(config_for(texts, tmp_path / "out", cluster.address, models=str(model)), recorded)
    finally:
        cluster.remove(node)
    assert statuses(recorded) == [("completed", None)]
    (refused,) = recorded.of(NodeRefused)
    assert "ultimate-embedder is not installed there: pip install 'ultimate-embedder[ray]'" in refused.reason
    assert stored_rows(tmp_path / "out")[:2] == (TEXTS, 0)
    assert worst_cosine(tmp_path / "out", reference) > 1 - CLOSE


def test_a_model_that_nodes_do_not_have_is_sent_to_them(
    cluster: LocalCluster, texts: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "hub" / "models--somebody--tiny"
    shutil.copytree(model, cached / "snapshots" / REVISION)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(REVISION)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))  # of this process: the nodes have another
    options: dict[str, Any] = {"models": HUB_ID, "ray_wait": 10.0}
    without = Recorded()
    embed_on(config_for(texts, tmp_path / "out", cluster.address, **options), without)
    ((status, error),) = statuses(without)
    assert status != "completed"
    assert HUB_ID in str(error)
    sent = Recorded()
    embed_on(config_for(texts, tmp_path / "out", cluster.address, ship_models=True, **options), sent)
    assert statuses(sent) == [("completed", None)]
    digest = resolve_model(HUB_ID).digest
    assert [folder.name for folder in (cluster.models / "ultimate-embedder-shipped").iterdir()] == [digest]
    embed(texts, tmp_path / "local", models=HUB_ID, devices="cpu", exports="none", offline=True, quiet=True)
    assert worst_cosine(tmp_path / "out", tmp_path / "local") > 1 - CLOSE
