"""Queries, encoded as the documents of an output were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed, open_output
from ultimate_embedder.config import HubAccess
from ultimate_embedder.errors import UsageError
from ultimate_embedder.find import open_query_encoder

OFFLINE = HubAccess(offline=True)
TEXTS = [f"text {number}" for number in range(5)]


@pytest.fixture
def output(write_chunks: WriteChunks, tmp_path: Path) -> Path:
    embed(write_chunks(TEXTS), tmp_path / "out", models=str(tiny_model("bert")), max_tokens=16, quiet=True)
    return tmp_path / "out"


def test_documents_get_the_vectors_that_the_run_gave_them(output: Path) -> None:
    encoder = open_query_encoder(open_output(output), "docs", OFFLINE)
    stored = np.load(open_output(output)["docs"].embeddings)
    assert np.allclose(encoder.encode_documents(TEXTS)[""], stored, atol=1e-5)
    assert encoder.encoders[0].max_tokens == 16


def test_a_collection_without_vectors_of_the_last_run_is_refused_in_words(output: Path) -> None:
    with pytest.raises(UsageError, match="has no vectors of 'dogs'"):
        open_query_encoder(open_output(output), "dogs", OFFLINE)


def test_an_output_without_a_summary_is_refused_in_words(output: Path) -> None:
    (output / "summary.json").unlink()
    with pytest.raises(UsageError, match="has no summary of a finished run"):
        open_query_encoder(open_output(output), "docs", OFFLINE)
