"""The words of a text, counted by Qdrant's own BM25, so that queries and a server's inference give the same indices."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import ModelError
from ultimate_embedder.types import Bm25Settings, ResolvedModel

if TYPE_CHECKING:
    from ultimate_embedder.sparse import SparseVectors

BM25 = "bm25"
DISTRIBUTION = "qdrant-edge-py"
COUNTING_K = 1e30  # the weight of a word rises with this to a limit: so high that the weight is the count
# what the engine makes of these tells its tokenizer, stop words, stemming and hash apart from those of other versions
PROBE = (
    "The quick brown foxes were running, and 3.14 isn't e-mail@example.org: state-of-the-art C++17 foo_bar camelCase!",
    "Die Häuser liefen über die Straße; l'été où nous étions à Nîmes, ¿dónde están los niños?",
    "Быстрые лисы бежали. 我来到北京清华大学。 日本語の文章です。 العربية 🙂 e\u0301",
)


class WordCounter:
    """Counts words with these settings."""

    def __init__(self, settings: Bm25Settings) -> None:
        from qdrant_edge import Bm25

        self.settings = settings
        try:
            self._engine = Bm25(_engine_config(settings))
        except (ValueError, AttributeError) as error:  # settings of an output that another version has written
            raise ModelError(f"the installed {DISTRIBUTION} has no BM25 with these settings: {error}") from error

    def count(self, texts: Sequence[str]) -> SparseVectors:
        """How often each word of a text occurs in it: a row for each text."""
        from ultimate_embedder.sparse import sparse_from_rows

        return sparse_from_rows([_ascending(self._engine.embed_document(text)) for text in texts])

    def query(self, text: str) -> SparseVectors:
        """The vector of a query: 1 for each of its words, whatever the length of the documents."""
        from ultimate_embedder.sparse import sparse_from_rows

        return sparse_from_rows([_ascending(self._engine.embed_query(text))])

    def digest(self) -> str:
        """Equal for engines that count alike."""
        counted = self.count(PROBE)
        described = json.dumps(dataclasses.asdict(self.settings), sort_keys=True).encode()
        parts = (described, counted.indptr.tobytes(), counted.indices.tobytes(), counted.values.tobytes())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def resolve_bm25(settings: Bm25Settings) -> ResolvedModel:
    """BM25 as a model: the engine in the installed package, and what it does with these settings."""
    import qdrant_edge

    version = importlib.metadata.version(DISTRIBUTION)
    folder = Path(qdrant_edge.__file__).parent
    digest = WordCounter(settings).digest()
    return ResolvedModel(BM25, None, folder, "package", f"{DISTRIBUTION}=={version}", digest, 0)


def _ascending(vector: Any) -> tuple[list[int], list[float]]:
    """Indices in their order, and values; a document's are in it."""
    indices, values = vector.indices, vector.values
    if sorted(indices) == indices:
        return indices, values
    pairs = sorted(zip(indices, values, strict=True))
    return [index for index, _ in pairs], [value for _, value in pairs]


def _engine_config(settings: Bm25Settings) -> Any:
    import qdrant_edge as edge

    tokenizer = getattr(edge.TokenizerType, settings.tokenizer.capitalize())
    plain = settings.language is None
    return edge.Bm25Config(
        k=COUNTING_K,
        b=0.0,
        tokenizer=tokenizer,
        language=settings.language,
        stopwords=edge.StopwordsSet() if plain else None,
        stemmer=edge.DisabledStemmer() if plain else None,
    )
