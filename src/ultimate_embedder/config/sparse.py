"""The option `--sparse`: which sparse vectors a point has beside the dense ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ultimate_embedder.config.parse import split_words, suggest
from ultimate_embedder.errors import UsageError
from ultimate_embedder.types import Bm25Settings, SparseMethod

SPARSE_METHODS: tuple[SparseMethod, ...] = ("bm25", "splade")
MULTILINGUAL = "multilingual"
DEFAULT_LANGUAGE = "english"
WITHOUT_SPACES = ("chinese", "japanese")
# those of Qdrant's BM25: it knows their stop words, and for most of them how words are stemmed
LANGUAGES = (
    "arabic", "azerbaijani", "basque", "bengali", "catalan", "chinese", "danish", "dutch", "english", "finnish",
    "french", "german", "greek", "hebrew", "hinglish", "hungarian", "indonesian", "italian", "japanese", "kazakh",
    "nepali", "norwegian", "portuguese", "romanian", "russian", "slovene", "spanish", "swedish", "tajik", "turkish",
)  # fmt: skip


@dataclass(frozen=True)
class SparseChoice:
    """A sparse vector that the user wants: BM25 with these settings, or that of a SPLADE model."""

    method: SparseMethod
    model: str | None = None
    """Registry key, hub id or folder, for SPLADE."""
    bm25: Bm25Settings | None = None


def parse_sparse(value: str | Iterable[str], option: str) -> tuple[SparseChoice, ...]:
    """Read `bm25`, `bm25=LANGUAGE` and `splade=MODEL`, of which there may be several."""
    chosen = tuple(_choice(word, option) for word in split_words(value))
    if isinstance(value, str) and not chosen:
        raise UsageError(f"{option} is empty. Write bm25, or splade=MODEL, or drop the option.")
    if sum(each.method == "bm25" for each in chosen) > 1:
        raise UsageError(f"{option}: bm25 is given twice. A point has one such vector.")
    return chosen


def sparse_word(method: str, model: str | None, language: str | None) -> str:
    """The word for a sparse vector that `parse_sparse` reads."""
    if method == "bm25":
        return method if language == DEFAULT_LANGUAGE else f"{method}={language or MULTILINGUAL}"
    return f"{method}={model}"


def _choice(word: str, option: str) -> SparseChoice:
    method, equals, rest = (part.strip() for part in word.partition("="))
    if method == "bm25" and (rest or not equals):
        return SparseChoice("bm25", bm25=bm25_settings(rest.lower() or DEFAULT_LANGUAGE, option))
    if method == "splade" and rest:
        return SparseChoice("splade", model=rest)
    if method in SPARSE_METHODS:
        example = "splade=granite-embedding-30m-sparse" if method == "splade" else "bm25=german"
        raise UsageError(f"{option} {word}: write {example}, for example.")
    raise UsageError(f"{option} {word}: not bm25, bm25=LANGUAGE or splade=MODEL.{suggest(method, SPARSE_METHODS)}")


def bm25_settings(language: str, option: str) -> Bm25Settings:
    """BM25 for texts in one language, or in several."""
    if language == MULTILINGUAL:
        return Bm25Settings(language=None, tokenizer="multilingual")
    if language not in LANGUAGES:
        raise UsageError(
            f"{option} bm25={language}: not one of {', '.join(LANGUAGES)}, or {MULTILINGUAL}, which has no stop words "
            f"and stems nothing.{suggest(language, (*LANGUAGES, MULTILINGUAL))}"
        )
    tokenizer = "multilingual" if language in WITHOUT_SPACES else "word"
    return Bm25Settings(language=language, tokenizer=tokenizer)
