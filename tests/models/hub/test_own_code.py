"""Models that need code from their own repository."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.attack_code import MARKER
from tests.support.attacks import module_of_the_folder, pickle_of_a_module
from tests.support.hub_server import HubServer
from tests.support.machine import (
    TEXTS,
    Machine,
    RunHere,
    assert_holds,
)
from tests.support.tiny_models import tiny_model

CODE_KEY, CODE_HUB_ID = "coderankembed", "nomic-ai/CodeRankEmbed"


@pytest.fixture(scope="module")
def with_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that only its own code can load."""
    folder = Path(shutil.copytree(tiny_model("bert"), tmp_path_factory.mktemp("code") / "model"))
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": own}))
    (folder / "configuration_own.py").write_text(
        "from transformers import BertConfig\n\n\nclass OwnConfig(BertConfig):\n    model_type = 'own'\n"
    )
    (folder / "modeling_own.py").write_text(
        "from transformers import BertModel\n\nfrom .configuration_own import OwnConfig\n\n\n"
        "class OwnModel(BertModel):\n    config_class = OwnConfig\n"
    )
    return folder


@pytest.mark.usefixtures("no_sockets")
def test_code_of_the_model_is_refused_unless_it_is_allowed(machine: Machine, run_here: RunHere) -> None:
    done = run_here(machine.embedding("--cache-dir", machine.cache, models=CODE_KEY))
    assert done.code == 1
    for words in (CODE_KEY, f"--trust-remote-code {CODE_KEY}"):
        assert words in done.err
    assert not (machine.folder / "out" / "docs").exists()


def test_code_that_is_allowed_is_pulled_and_comes_from_the_cache(
    machine: Machine, hub_here: HubServer, run_here: RunHere, with_code: Path
) -> None:
    commit = hub_here.publish(CODE_HUB_ID, with_code)
    trust = ("--trust-remote-code", CODE_KEY)
    pulled = machine.run("models", "pull", CODE_KEY, *trust)
    assert pulled.code == 0, pulled.err
    assert_holds(machine.snapshot(commit, CODE_HUB_ID), with_code)
    hub_here.requests.clear()
    (entry,) = run_here(machine.embedding(*trust, "--cache-dir", machine.cache, models=CODE_KEY)).models
    assert (entry["source"], entry["revision"]) == ("cache", commit)
    assert hub_here.requests == []
    assert machine.vectors().shape == (len(TEXTS), 64)


@pytest.mark.parametrize("attack", [module_of_the_folder, pickle_of_a_module])
def test_code_that_a_hub_serves_does_not_run(
    machine: Machine,
    hub_here: HubServer,
    run_here: RunHere,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attack: Callable[[Path], None],
) -> None:
    monkeypatch.setenv(MARKER, str(tmp_path / "marker"))
    folder = Path(shutil.copytree(tiny_model("bert"), tmp_path / "evil"))
    attack(folder)
    hub_here.publish("some/evil", folder)
    done = run_here(machine.embedding("--cache-dir", machine.cache, models="some/evil"))
    assert done.code == 1
    assert "--trust-remote-code some/evil" in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "marker").exists()
