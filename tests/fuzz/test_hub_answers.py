"""Whatever a hub says, and whatever the files of a model say: our own errors, and nothing outside of the cache."""

from __future__ import annotations

import contextlib
import copy
import json
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import API, COMMIT, CONTENT, entry, info, pull, tell, tree
from tests.support.hub_here import use_hub_here
from tests.support.hub_server import HubServer
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.models.hub_answers import AnswerError, parse_model_info
from ultimate_embedder.models.hub_cache import (
    FILE_LISTS,
    find_snapshot,
    problems_of,
    read_file_list,
    read_safetensors_header,
)
from ultimate_embedder.models.metadata import native_dim, position_limit, read_metadata
from ultimate_embedder.models.paths import collision, file_problem, inside
from ultimate_embedder.models.resolve import resolve_model
from ultimate_embedder.models.trust import require_trust
from ultimate_embedder.models.verify import verify_snapshot
from ultimate_embedder.types import ResolvedModel

CACHE = str(Path("a", "hub"))
NAMES = st.sampled_from(
    ["../x", "/etc/passwd", "..", "a/../../x", "C:\\x", "config.json", "a\0b", "\ud800", "x" * 300, "~/x", "con", "."]
) | st.text(max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | NAMES
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=5
)
MODEL = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Router", "type": "sentence_transformers.models.Router"},
    ],
    "config.json": {"model_type": "bert", "max_position_embeddings": 8, "hidden_size": 4, "auto_map": {}},
    "tokenizer_config.json": {"model_max_length": 8, "tokenizer_class": "BertTokenizer"},
    "sentence_bert_config.json": {"max_seq_length": 8, "model_args": {"dtype": "float32"}},
    "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "similarity_fn_name": "cosine"},
    "1_Pooling/config.json": {"word_embedding_dimension": 4, "pooling_mode": "mean"},
    "2_Router/router_config.json": {"types": {"x": "sentence_transformers.models.Dense"}, "structure": {"a": ["x"]}},
    "2_Router/x/config.json": {"in_features": 4, "activation_function": "torch.nn.Tanh"},
    "model.safetensors.index.json": {"metadata": {}, "weight_map": {"w": "model.safetensors"}},
}


@pytest.fixture(scope="module")
def hostile() -> Iterator[HubServer]:
    with HubServer() as hub, pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        use_hub_here(hub.url, Path(folder), patch)
        yield hub


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@st.composite
def mutated(draw: st.DrawFn, template: Any) -> Any:
    """The template with a few values replaced, removed or added, at any depth."""
    root: Any = [copy.deepcopy(template)]
    for _ in range(draw(st.integers(0, 3))):
        holder: Any = root
        key: Any = 0
        while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 3)):
            holder = holder[key]
            key = draw(st.sampled_from(list(holder) if isinstance(holder, dict) else range(len(holder))))
        if draw(st.booleans()) and isinstance(holder, dict):
            holder.pop(key)
            holder[draw(NAMES)] = draw(VALUES)
        else:
            holder[key] = draw(VALUES)
    return root[0]


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


@given(described=mutated(info(entry(), entry("model.safetensors", lfs={"sha256": "a" * 64}))), cut=st.integers(0, 20))
def test_a_description_is_parsed_or_refused_in_words(described: Any, cut: int) -> None:
    body = written(described)
    for part in (body, body[cut:], body[:-cut]):
        with contextlib.suppress(AnswerError):
            commit, files = parse_model_info(part)
            assert len(commit) in (40, 64)
            assert all(len(file.blob) in (40, 64) and file.size_bytes >= 0 for file in files)


@given(st.binary(max_size=200))
def test_bytes_are_refused_in_words(body: bytes) -> None:
    with contextlib.suppress(AnswerError):
        parse_model_info(body)


@given(st.lists(NAMES | st.builds("{}/{}".format, NAMES, NAMES), max_size=4))
def test_a_name_is_refused_or_stays_inside(names: list[str]) -> None:
    collision(name for name in names if file_problem(name) is None)
    with fresh_folder() as folder:
        for name in names:
            with contextlib.suppress(UltimateEmbedderError):
                path = inside(folder, name)
                assert path.resolve().is_relative_to(folder.resolve())
            assert file_problem(name) is not None or (folder / name).resolve().is_relative_to(folder.resolve())


@given(
    described=mutated(info(entry(), entry("1_Pooling/config.json"), entry("README.md"))),
    body=st.sampled_from([CONTENT, CONTENT + b"x", CONTENT[:-1], b"", b"x" * 100_000]),
    headers=st.dictionaries(
        st.sampled_from(["Content-Length", "Content-Encoding", "Content-Range", "ETag", "Retry-After"]),
        st.sampled_from(["", "0", "7", "30", "99999999999999999999", "gzip", "bytes 5-9/9", "²", "-1", "x"]),
        max_size=2,
    ),
    status=st.sampled_from([200, 200, 200, 206, 204, 304, 404, 416, 500]),
    location=st.sampled_from(["", "", "file:///etc/passwd", "//", "http://[", "?", "/x", "data:,x"]),
)
def test_a_download_writes_nothing_outside_of_the_cache(
    hostile: HubServer, described: Any, body: bytes, headers: dict[str, str], status: int, location: str
) -> None:
    with fresh_folder() as folder:
        (folder / "a").mkdir()
        (folder / "victim.txt").write_text("precious")
        tell(hostile, described, body, headers)
        if location:
            hostile.replies.insert(0, ("GET .*/resolve/", (302, b"", {"Location": location})))
        elif status != 200:
            hostile.replies.insert(0, (f"{API}|GET .*/resolve/", (status, body, headers)))
        with contextlib.suppress(UltimateEmbedderError):
            pull(folder / CACHE)
        outside = {name: content for name, content in tree(folder).items() if not name.startswith(CACHE)}
        assert outside == {"a": None, "victim.txt": b"precious"}
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 50_000


@given(files=st.fixed_dictionaries({name: mutated(content) for name, content in MODEL.items()}), cut=st.integers(0, 3))
def test_the_files_of_a_model_are_checked_or_refused_in_words(files: dict[str, Any], cut: int) -> None:
    with fresh_folder() as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(written(content)[cut == 3 :])
        model = ResolvedModel("x", None, folder, "folder", "", "", 0)
        list(problems_of(folder))
        position_limit(model)
        for check in (lambda: require_trust(None, folder, ()), lambda: read_metadata(folder)):
            with contextlib.suppress(UltimateEmbedderError):
                check()
        with contextlib.suppress(UltimateEmbedderError):
            native_dim(model)
        with contextlib.suppress(UltimateEmbedderError):
            resolve_model(str(folder), HubAccess(offline=True))


@given(
    header=mutated({"__metadata__": {}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
    length=st.none() | st.integers(0, 2**64 - 1),
    data=st.binary(max_size=16),
)
def test_a_safetensors_header_is_read_or_damaged(header: Any, length: int | None, data: bytes) -> None:
    text = written(header)
    with fresh_folder() as folder:
        path = folder / "model.safetensors"
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
        with contextlib.suppress(ValueError):
            assert isinstance(read_safetensors_header(path), dict)


@given(
    ref=NAMES,
    listed=mutated([{"name": "config.json", "size": 2, "sha256": None, "blob": "b" * 40}]),
    revision=st.none() | NAMES,
)
def test_a_cache_is_read_without_leaving_it(ref: str, listed: Any, revision: str | None) -> None:
    with fresh_folder() as cache:
        repo = cache / "models--some--model"
        for name in ("refs", FILE_LISTS, f"snapshots/{COMMIT}"):
            (repo / name).mkdir(parents=True)
        (repo / "refs" / "main").write_bytes(ref.encode(errors="surrogatepass"))
        (repo / FILE_LISTS / f"{COMMIT}.json").write_bytes(written(listed))
        (repo / "snapshots" / COMMIT / "config.json").write_text("{}")
        assert all(file_problem(file.name) is None for file in read_file_list(repo, COMMIT))
        if snapshot := find_snapshot("some/model", revision, [cache]):
            assert snapshot.path.parent == repo / "snapshots"
            list(verify_snapshot(snapshot))
