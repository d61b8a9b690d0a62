"""Code and pickles of a model do not run unless the user names the model, whatever library loads it."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers.base.modules
import sentence_transformers.cross_encoder.modules
import sentence_transformers.sentence_transformer.modules
import sentence_transformers.sparse_encoder.modules
from sentence_transformers.base.modules import Module

from tests.models.test_resolve import put_into_cache
from tests.support.attack_code import MARKER, Payload
from tests.support.attacks import ATTACKS, add_module, change, module_of_the_folder, pickle_of_a_module
from tests.support.hub_here import keep_own_code_below
from tests.support.tiny_models import tiny_cross_encoder, tiny_model
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.models import find_spec, is_trusted, load_encoder, load_reranker, require_trust, resolve_model
from ultimate_embedder.models.foreign_code import MODULE_CLASSES
from ultimate_embedder.models.resolve import spec_of
from ultimate_embedder.types import ModelSpec, ResolvedModel


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the code of an attack would leave."""
    monkeypatch.setenv(MARKER, str(tmp_path / "marker"))
    keep_own_code_below(tmp_path, monkeypatch)
    return tmp_path / "marker"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a small model that a test may spoil."""
    return Path(shutil.copytree(tiny_model("bert", hidden=64, layers=1), tmp_path / "my-model"))


def found_at(folder: Path, spec: ModelSpec | None = None) -> ResolvedModel:
    """A model as if it had been resolved by somebody who does not check."""
    return ResolvedModel("my-model", spec, folder, "folder", "commit", "digest", 0)


def load(folder: Path, spec: ModelSpec | None = None, trusted: tuple[str, ...] = ()) -> Any:
    return load_encoder(found_at(folder, spec), "float32", "cpu", trusted=trusted)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_by_everything_that_loads_and_does_not_run(folder: Path, marker: Path, name: str) -> None:
    attack, words = ATTACKS[name]
    attack(folder)
    loaders = (
        lambda: resolve_model(str(folder)),
        lambda: load(folder),
        lambda: load_reranker(found_at(folder), "float32"),
    )
    for loader in loaders:
        with pytest.raises(ModelError) as caught:
            loader()
        assert words in str(caught.value)
        assert f"--trust-remote-code {folder}" in str(caught.value)
    assert not marker.exists()


def test_the_same_attack_runs_where_the_user_trusts_the_folder(folder: Path, marker: Path) -> None:
    module_of_the_folder(folder)
    with pytest.raises(ModelError, match="cannot be loaded"):  # as it is no module
        load(folder, trusted=(str(folder),))
    assert marker.exists()


def test_an_attack_in_the_cache_names_what_to_type(
    folder: Path, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    module_of_the_folder(folder)
    put_into_cache(tmp_path / "hub", "Some/Model", folder)
    with pytest.raises(ModelError, match=r"model would run code .* --trust-remote-code Some/Model;"):
        resolve_model("Some/Model")
    assert not marker.exists()


def test_a_harmless_model_is_loaded_with_pickles_beside_its_safetensors(folder: Path, marker: Path) -> None:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        (folder / name).write_bytes(b"no weights")
    (folder / "openvino").mkdir()
    (folder / "openvino" / "openvino_model.bin").write_bytes(b"not a pickle")
    assert resolve_model(str(folder)).source == "folder"
    assert load(folder).dim == 64


def test_a_harmless_dense_layer_and_reranker_are_loaded(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from torch import zeros

    dense = {"in_features": 64, "out_features": 8, "bias": False}
    add_module(folder, "3_Dense", "sentence_transformers.models.Dense", **dense)
    change(folder, "3_Dense/config.json", activation_function="torch.nn.modules.activation.Tanh")
    save_file({"linear.weight": zeros(8, 64)}, folder / "3_Dense" / "model.safetensors")
    assert load(folder).dim == 8
    reranker = Path(shutil.copytree(tiny_cross_encoder(), tmp_path / "reranker"))
    change(reranker, "config.json", sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    assert load_reranker(found_at(reranker), "float32").name == "my-model"


def test_a_registered_model_without_safetensors_is_read_without_running_code(folder: Path, marker: Path) -> None:
    import torch
    from safetensors.torch import load_file

    spec = find_spec("bge-m3")
    assert spec is not None
    weights = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), weights)
    (folder / "model.safetensors").unlink()
    assert load(folder, spec).dim == 64
    with pytest.raises(ModelError, match="are a pickle"):
        load(folder, spec_of("somebody/else"))
    weights.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(folder, spec)
    pickle_of_a_module(folder)
    with pytest.raises(ModelError, match=r"3_Dense/pytorch_model\.bin are a pickle"):
        load(folder, spec)
    assert not marker.exists()


def test_trust_is_by_registry_name_hub_id_or_path_and_by_nothing_that_others_can_choose(tmp_path: Path) -> None:
    registered, other = find_spec("coderankembed"), spec_of("evil/CodeRankEmbed")
    assert registered is not None
    assert other is not None
    assert other.key == registered.key
    for word in ("coderankembed", "nomic-coderank", "nomic-ai/CodeRankEmbed"):
        assert is_trusted(registered, None, [word])
        assert not is_trusted(other, None, [word])
        assert not is_trusted(None, tmp_path / word.split("/")[-1], [word])
    assert is_trusted(other, None, ["evil/coderankembed"])
    assert is_trusted(None, tmp_path / "a", ["x", str(tmp_path / "b" / ".." / "a")])
    assert not is_trusted(None, tmp_path / "a", ["a", "other/a"])


def test_every_module_of_the_installed_library_is_known() -> None:
    parts = sentence_transformers
    for package in (parts.base, parts.sentence_transformer, parts.sparse_encoder, parts.cross_encoder):
        for name, found in vars(package.modules).items():
            if inspect.isclass(found) and issubclass(found, Module) and not inspect.isabstract(found):
                assert name in MODULE_CLASSES


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", '[{"type": "sentence_transformers.models.Pooling", "path": "../../x"}]'),
        ("modules.json", '[{"type": "sentence_transformers.models.Pooling", "path": "/etc"}]'),
        ("modules.json", '[{"type": "sentence_transformers.models.Pooling", "path": 5}]'),
        ("modules.json", '{"type": "x"}'),
        ("modules.json", '["x"]'),
        ("modules.json", "[" * 100_000),
        ("config.json", "[1, 2"),
        ("1_Pooling/config.json", "\x00"),
        ("model.safetensors.index.json", '{"weight_map": {"x": "../../../etc/passwd"}}'),
        ("model.safetensors.index.json", '{"weight_map": ["x"]}'),
    ],
)
def test_a_damaged_file_is_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ModelError) as caught:
        resolve_model(str(folder))
    assert str(folder) in str(caught.value)


def test_a_named_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "other_config.json")
    with pytest.raises(ModelError, match=r"other_config\.json is damaged \(it is not a file\)"):
        resolve_model(str(folder))


@pytest.mark.parametrize("limit", [-1, "many"])
def test_a_token_limit_that_is_none_is_an_error_in_words(folder: Path, limit: Any) -> None:
    change(folder, "sentence_bert_config.json", max_seq_length=limit)
    with pytest.raises(ModelError, match=f"{limit!r} for its token limit"):
        load(folder)


@pytest.mark.parametrize("depth", [50, 500, *range(900, 1000, 3), 5000])
def test_deeply_nested_values_are_no_way_around_the_check(tmp_path: Path, depth: int) -> None:
    deep = f"{'[' * depth}1{']' * depth}"
    (tmp_path / "config.json").write_text(f'{{"x": {deep}, "y": {{"auto_map": {deep}}}}}')
    with pytest.raises(ModelError, match=r"auto_map|nested too deeply"):
        require_trust(None, tmp_path, ())


def test_a_module_folder_that_is_a_link_to_elsewhere_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / "1_Pooling", tmp_path / "elsewhere")
    (folder / "1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="leaves the model's folder"):
        load(folder)


def test_a_configuration_with_values_of_wrong_types_is_an_error_in_words(folder: Path) -> None:
    for wrong in ({"hidden_size": "x"}, {"num_attention_heads": 0}, {"dtype": "hub"}, {"vocab_size": [1]}):
        broken = Path(shutil.copytree(folder, folder.parent / json.dumps(wrong).strip("{}").replace('"', "")))
        change(broken, "config.json", **wrong)
        with pytest.raises(ModelError, match="cannot be loaded from"):
            load(broken)


def test_a_pulled_model_with_code_is_refused_before_its_digest_is_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module_of_the_folder(folder)
    monkeypatch.setattr("ultimate_embedder.models.resolve.files_digest", lambda path: pytest.fail("it was read"))
    with pytest.raises(ModelError, match="would run code"):
        resolve_model(str(folder), HubAccess(offline=True, trusted=("my-model",)))
