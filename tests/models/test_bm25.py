"""Words are counted by Qdrant's engine, and weighted as it does."""

from __future__ import annotations

import numpy as np
import pytest
import qdrant_edge as edge

from ultimate_embedder.config import LANGUAGES, bm25_settings
from ultimate_embedder.models import WordCounter, resolve_bm25
from ultimate_embedder.models.bm25 import PROBE
from ultimate_embedder.types import Bm25Settings
from ultimate_embedder.vectors import weigh_counts

TEXTS = [*PROBE, "", "the of and", "mouse " * 70_000 + "clock", *(f"mice and clocks {n} " * (n % 7) for n in range(40))]


def engine(settings: Bm25Settings, avg_len: float) -> edge.Bm25:
    tokenizer = getattr(edge.TokenizerType, settings.tokenizer.capitalize())
    if settings.language is not None:
        return edge.Bm25(edge.Bm25Config(avg_len=avg_len, language=settings.language, tokenizer=tokenizer))
    plain = edge.StopwordsSet(), edge.DisabledStemmer()
    return edge.Bm25(edge.Bm25Config(avg_len=avg_len, tokenizer=tokenizer, stopwords=plain[0], stemmer=plain[1]))


@pytest.mark.parametrize("language", ["english", "german", "chinese", "multilingual"])
def test_vectors_have_the_bits_of_the_engines_own(language: str) -> None:
    settings = bm25_settings(language, "--sparse")
    counter = WordCounter(settings)
    counts = counter.count(TEXTS)
    avg_len = float(counts.row_sums.mean())
    own, weights = engine(settings, avg_len), weigh_counts(counts, settings, avg_len)
    for row, text in enumerate(TEXTS):
        expected = own.embed_document(text)
        assert weights[row][0].tolist() == expected.indices
        assert np.array_equal(weights[row][1], np.array(expected.values, np.float32))
        asked = own.embed_query(text)
        assert counter.query(text)[0][0].tolist() == sorted(asked.indices)
        assert set(counter.query(text)[0][1].tolist()) <= {1.0}


def test_counts_are_whole_numbers_however_often_a_word_occurs() -> None:
    counts = WordCounter(Bm25Settings()).count(TEXTS)
    assert (counts.values == np.round(counts.values)).all()
    assert counts.values.max() == 70_000
    assert counts.lengths[3] == counts.lengths[4] == 0  # no text, and stop words only


def test_the_engine_has_every_language_and_they_differ() -> None:
    digests = {language: resolve_bm25(bm25_settings(language, "--sparse")).digest for language in LANGUAGES}
    assert len(set(digests.values())) == len(LANGUAGES)
    assert resolve_bm25(Bm25Settings()).digest == digests["english"]
    assert resolve_bm25(Bm25Settings()).revision.startswith("qdrant-edge-py==")
