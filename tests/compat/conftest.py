"""Notebooks and scripts on a machine without a GPU, with tiny models."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.hub_here import use_hub_here
from tests.support.hub_server import HubServer
from tests.support.tiny_models import tiny_model
from ultimate_embedder.compat import KaggleExportConfig, UltimateKaggleEmbedderV4

Make = Callable[..., UltimateKaggleEmbedderV4]


@pytest.fixture(autouse=True, scope="module")
def on_the_cpu() -> Iterator[None]:
    """No device but the CPU, and no variable that changes what a test asks for."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("EMBEDDER_")]:
            patch.delenv(name)
        patch.setenv("ULTIMATE_EMBEDDER_DEVICES", "cpu")
        yield


@pytest.fixture(scope="session")
def models() -> list[str]:
    """Two models of one dimension: tiny-bert and tiny-mpnet."""
    return [str(tiny_model("bert", hidden=32, layers=1)), str(tiny_model("mpnet", hidden=32, layers=1))]


@pytest.fixture
def make(tmp_path: Path, models: list[str]) -> Make:
    """Make an embedder that works below `tmp_path`, with the first model unless another is named."""

    def make_embedder(**keywords: object) -> UltimateKaggleEmbedderV4:
        usual = {"model_name": models[0], "export_config": KaggleExportConfig(working_dir=str(tmp_path))}
        return UltimateKaggleEmbedderV4(**{**usual, **keywords})  # type: ignore[arg-type]

    return make_embedder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub for this process, and an empty cache."""
    with HubServer() as server:
        use_hub_here(server.url, tmp_path, monkeypatch)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
        yield server
