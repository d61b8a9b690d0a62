"""One cluster for all tests of this folder: it takes some seconds to start."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)

from tests.cluster.local_cluster import LocalCluster, local_cluster
from tests.cluster.runs import write_texts
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed

TEXTS = 600


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster(2) as started:
        yield started


@pytest.fixture(scope="session")
def model() -> Path:
    return tiny_model("bert")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"), TEXTS)


@pytest.fixture(scope="session")
def reference(texts: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run on this machine."""
    output = tmp_path_factory.mktemp("reference") / "out"
    embed(texts, output, models=str(model), devices="cpu", exports="none", offline=True)
    return output
