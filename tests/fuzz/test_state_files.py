"""Random damage to state files: readers give what is there or say that it is damaged, and runs come out right."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.damage import WRONG_VALUES, edited, places, resealed, restore, unsealed
from tests.test_damaged_state import FILES, MODELS, Runs, find
from ultimate_embedder.description import read_description
from ultimate_embedder.export import find_exports, journal_problems, read_uploads
from ultimate_embedder.export.upload_state import UploadJournal
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.status import output_status
from ultimate_embedder.vectors import TokenStore, VectorStore, read_identity, read_ledger, token_problems
from ultimate_embedder.vectors.agreement import Agreement, read_agreement, write_agreement
from ultimate_embedder.vectors.overflow import overflow_note

READ_ONLY = ("agreement.json", "overflow.json", "tokens-00000.arrow")


@functools.cache
def root() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-state-"))


@functools.cache
def runs() -> Runs:
    return Runs(root())


@functools.cache
def good() -> Path:
    """An output with every kind of state file."""
    output = root() / "good"
    assert runs().run(output).ok
    UploadJournal(output / "docs", "http://localhost:6333", "docs", "0" * 64).note(10, force=True)
    return output


@functools.cache
def good_with_notes() -> Path:
    output = restore(good(), root() / "good-with-notes")
    folder = find("pass.json", output).parent
    write_agreement(folder, Agreement(10, 0.99, 0.9))
    tokens = TokenStore(output / "docs" / "store" / "tokens-0123")
    tokens.append(np.array([[1, 2], [3, 4]], np.uint64), [np.array([5, 6]), np.array([7])], np.zeros(2, bool))
    shutil.copy(folder / "agreement.json", folder / "overflow.json")
    return output


WORDS = (b"null", b"-1", b"[]", b"{}", b'""', b"1e999", b"NaN", b"\0" * 16, b"\xff", b"9" * 400, b"\n", b'"../x"', b",")
VALUES = st.one_of(st.sampled_from(WRONG_VALUES), st.integers(-1, 1 << 70), st.text(max_size=3), st.just(float("inf")))


@st.composite
def forgeries(draw: st.DrawFn, content: bytes) -> bytes:
    """Another value at some place, with the checksum that fits, or with none."""
    lines = content.splitlines() if content.count(b"\n{") else [content]
    number = draw(st.integers(0, len(lines) - 1))
    values = unsealed(json.loads(lines[number]))
    place = draw(st.sampled_from(list(places(values))))
    values = edited(values, place, draw(VALUES), remove=draw(st.booleans()))
    lines[number] = json.dumps(resealed(values) if draw(st.booleans()) else values).encode()
    return b"\n".join(lines) + b"\n"


@st.composite
def mutations(draw: st.DrawFn, content: bytes) -> bytes:
    """Some bytes changed, cut out, doubled, or put in; mostly JSON still, so that it gets far."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(0, len(content) - 1)))
        stop = min(len(content), start + draw(st.integers(0, 12)))
        put = draw(st.one_of(st.sampled_from(WORDS), st.binary(max_size=4), st.just(content[stop : stop + 40])))
        content = content[:start] + put + content[stop:]
    return content


def damaged(path: Path) -> st.SearchStrategy[bytes]:
    content = path.read_bytes()
    return mutations(content) if path.suffix == ".arrow" else st.one_of(mutations(content), forgeries(content))


def location(name: str, output: Path) -> Path:
    return next(output.glob(f"docs/store/tokens-0123/{name}")) if name.endswith(".arrow") else find(name, output)


@pytest.mark.parametrize("name", [*FILES, *READ_ONLY])
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_no_reader_raises(name: str, data: st.DataObject) -> None:
    source = location(name, good_with_notes())
    output = root() / "read"
    if not output.exists():
        restore(good_with_notes(), output)
    path = output / source.relative_to(good_with_notes())
    identity = read_identity(source.parent)
    path.write_bytes(data.draw(damaged(source)))
    folder, collection = path.parent, output / "docs"
    try:
        read_description(folder), read_ledger(folder), read_agreement(folder), overflow_note(folder)
        journal_problems(collection), read_uploads(collection), find_exports(collection, ["npy", "parquet"])
        list(token_problems(collection / "store"))
        Output(output).try_summary()
        output_status(output)
        runs().problems(output)
        if identity is not None:
            VectorStore(collection / "store", identity, read_only=True)
    finally:
        shutil.copy(source, path)


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=max(2, settings().max_examples // 20))
@given(data=st.data())
def test_a_run_comes_out_right(name: str, data: st.DataObject) -> None:
    output = restore(good(), root() / "run")
    path = find(name, output)
    path.write_bytes(data.draw(damaged(path)))
    runs().docs(output)
    for model in MODELS:
        made, expected = (np.load(CollectionOutput(each / "docs").embeddings_of(model)) for each in (output, good()))
        np.testing.assert_allclose(made, expected, atol=1e-5)
    assert runs().problems(output) == []


@pytest.fixture(autouse=True, scope="module")
def nothing_left() -> Iterator[None]:
    yield
    shutil.rmtree(root(), ignore_errors=True)
