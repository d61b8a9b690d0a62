"""What describes a model is fetched from the hub, and never its weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.hub_server import HubServer
from tests.support.machine import GET_WEIGHTS, HUB_ID, KEY, WEIGHTS, Machine
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import DownloadError, MissingModelError
from ultimate_embedder.models import describe_model, pull_model, resolve_model

UNKNOWN = "somebody/some-model"


@pytest.fixture
def access(machine: Machine, hub_here: HubServer) -> HubAccess:
    return HubAccess(cache_dir=machine.cache)


def silent(event: object) -> None:
    """Discard an event."""


def test_no_weights_are_requested_and_the_digest_is_that_of_the_whole_model(
    hub: HubServer, model: Path, access: HubAccess, tmp_path: Path
) -> None:
    hub.publish(HUB_ID, model)
    described = describe_model(KEY, access, silent, tmp_path)
    assert hub.asked(GET_WEIGHTS) == []
    assert (described.weights, described.stand_in) == ("hub", False)
    size = (model / WEIGHTS).stat().st_size
    assert described.weights_bytes == described.download_bytes == size
    pulled = pull_model(KEY, access, silent)
    assert (pulled.digest, pulled.revision) == (described.model.digest, described.model.revision)
    assert describe_model(KEY, access, silent, tmp_path).weights == "here"


def test_a_model_that_is_complete_stays_in_use(hub: HubServer, model: Path, access: HubAccess, tmp_path: Path) -> None:
    old = hub.publish(HUB_ID, model)
    pull_model(KEY, access, silent)
    newer = Path(shutil.copytree(model, tmp_path / "newer"))
    (newer / "README.json").write_text("{}")
    hub.publish(HUB_ID, newer)
    asked = len(hub.requests)
    assert describe_model(KEY, access, silent, tmp_path).weights == "here"
    assert len(hub.requests) == asked
    offline = HubAccess(cache_dir=access.cache_dir, offline=True)
    assert resolve_model(KEY, offline).revision == old


def test_what_was_fetched_describes_the_model_offline_too(
    hub: HubServer, model: Path, access: HubAccess, tmp_path: Path
) -> None:
    hub.publish(HUB_ID, model)
    before = describe_model(KEY, access, silent, tmp_path)
    offline = HubAccess(cache_dir=access.cache_dir, offline=True)
    again = describe_model(KEY, offline, silent, tmp_path)
    assert (again.weights, again.model.digest) == ("missing", before.model.digest)
    assert again.weights_bytes == before.weights_bytes
    with pytest.raises(MissingModelError, match=f"{WEIGHTS} is missing"):
        resolve_model(KEY, offline)


def test_the_registry_stands_in_where_the_hub_has_nothing(access: HubAccess, tmp_path: Path) -> None:
    described = describe_model(KEY, access, silent, tmp_path)  # nothing is published
    assert (described.weights, described.stand_in, described.model.digest) == ("missing", True, "")
    assert described.weights_bytes == pytest.approx(2.27e9, rel=0.01)
    assert "404" in described.note


def test_of_other_models_nothing_is_known(access: HubAccess, tmp_path: Path) -> None:
    with pytest.raises(DownloadError):
        describe_model(UNKNOWN, access, silent, tmp_path)
    with pytest.raises(MissingModelError):
        describe_model(UNKNOWN, HubAccess(cache_dir=access.cache_dir, offline=True), silent, tmp_path)


def test_a_folder_without_weights_is_described(model: Path, access: HubAccess, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    described = describe_model(str(bare), access, silent, tmp_path)
    assert (described.weights, described.name) == ("missing", "bare")
    assert "no weights" in described.note
