"""The options of `evaluate`: name, type, default, help and check of each, in the signature of `make_evaluate_config`.

The command line, the fields of `EvaluateConfig` and the signature of the Python function `evaluate` follow from it.
Annotations are evaluated here (no `from __future__ import annotations`), as they are read at run time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ultimate_embedder.config import (
    CacheDirOption,
    OfflineOption,
    Option,
    TrustOption,
    at_least,
    devices_from_environment,
    hub_access,
    read_options,
    split_words,
)
from ultimate_embedder.errors import UsageError
from ultimate_embedder.find.options import (
    CANDIDATES,
    ModelFoldersOption,
    RerankDevicesOption,
    RerankPrecisionOption,
    SearchPlace,
)

DATA = "queries and judgements"
WAYS = "what is compared"
EVALUATION_OUTPUT = "output"

SPLITS = ("query", "document")
MADE_QUERIES = 200


@dataclass(frozen=True)
class EvaluateConfig:
    """All options of an evaluation. The defaults are those of `make_evaluate_config`."""

    folder: Path
    collection: str | None
    queries: Path | Mapping[str, str] | None
    qrels: Path | Mapping[str, Mapping[str, int]] | None
    doc_field: str | None
    least_grade: int | None
    make_queries: int | None
    save_queries: Path | None
    dims: tuple[int, ...]
    candidates: int
    rerank: str | None
    tune: bool
    split: str
    against: Path | None
    against_collection: str | None
    seed: int
    place: SearchPlace
    """The output, and what it is searched with."""
    html: Path | None
    quiet: bool


def _folder(value: str | Path, option: str) -> Path:
    if not Path(value).is_dir():
        raise UsageError(f"{value} is not a folder. Give the --output of an earlier embed.")
    return Path(value)


def _source(value: Any, option: str) -> Any:
    if isinstance(value, Mapping):
        return value
    path = Path(value)
    if not path.exists():
        raise UsageError(f"{option} {path} does not exist.")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder. Give a file.")
    return path


def _file(value: str | Path, option: str) -> Path:
    if Path(value).is_dir():
        raise UsageError(f"{option} {value} is a folder. Give the name of a file.")
    return Path(value)


def _new_folder(value: str | Path, option: str) -> Path:
    if Path(value).exists() and not Path(value).is_dir():
        raise UsageError(f"{option} {value} is a file. Give a folder.")
    return Path(value)


def _dims(value: str | int | Iterable[Any], option: str) -> tuple[int, ...]:
    given = [value] if isinstance(value, int) else value
    words = split_words(given if isinstance(given, str) else map(str, given))
    if not all(word.isdecimal() and 0 < int(word) < 1 << 20 for word in words):
        raise UsageError(f"{option} {','.join(words)}: write numbers of dimensions, such as 256,128.")
    return tuple(dict.fromkeys(map(int, words)))


def _count(value: str | int | bool, option: str) -> int | None:
    if value is True:
        return MADE_QUERIES
    if value is False:
        return None
    try:
        return at_least(int(value), 1, option)
    except ValueError:
        raise UsageError(f"{option} {value}: write a number of queries.") from None


def make_evaluate_config(
    folder: Annotated[str | Path, Option("the --output of embed", DATA, "DIR", positional=True, read=_folder)],
    *,
    queries: Annotated[
        str | Path | Mapping[str, str] | None,
        Option("queries: JSON Lines with _id and text (BEIR), JSON, TSV or CSV", DATA, "FILE", read=_source),
    ] = None,
    qrels: Annotated[
        str | Path | Mapping[str, Mapping[str, int]] | None,
        Option("judgements: BEIR (TSV), TREC, JSON Lines, JSON or CSV", DATA, "FILE", read=_source),
    ] = None,
    collection: Annotated[
        str | None, Option("the collection, if there are several", DATA, "NAME", default="the only one")
    ] = None,
    doc_field: Annotated[
        str | None,
        Option(
            "judgements are of documents: chunks with the same value of this field, such as metadata.document_id; a "
            "document ranks where its best chunk does",
            DATA,
            "FIELD",
            default="judgements are of chunk ids",
        ),
    ] = None,
    least_grade: Annotated[
        int | None,
        Option(
            "count grades from N as relevant, all alike", DATA, "N", default="graded", read=partial(at_least, least=1)
        ),
    ] = None,
    make_queries: Annotated[
        str | int | bool | None,
        Option(
            "without judgements: make N queries of titles and headings in the metadata",
            DATA,
            "N",
            default=f"--make-queries alone: {MADE_QUERIES}",
            alone=str(MADE_QUERIES),
            read=_count,
        ),
    ] = None,
    save_queries: Annotated[
        str | Path | None,
        Option(
            "write what --make-queries made to this folder, to correct and use it again", DATA, "DIR", read=_new_folder
        ),
    ] = None,
    dims: Annotated[
        str | int | Iterable[Any],
        Option(
            "also evaluate vectors truncated to these dimensions",
            WAYS,
            "N,...",
            default="what models were trained for, down to an eighth",
            read=_dims,
        ),
    ] = (),
    candidates: Annotated[
        int,
        Option(
            "chunks of each leg that are fused, and that are reranked",
            WAYS,
            "N",
            default=f"{CANDIDATES}, as in search",
            read=partial(at_least, least=1),
        ),
    ] = CANDIDATES,
    rerank: Annotated[str | None, Option("also rerank the candidates of the default search", WAYS, "MODEL")] = None,
    tune: Annotated[
        bool, Option("choose weights of the legs on one half of the queries, and test them on the other", WAYS)
    ] = False,
    split: Annotated[
        str,
        Option(
            "halves of --tune: by query, or so that queries with a common relevant document stay together",
            WAYS,
            "BY",
            choices=SPLITS,
        ),
    ] = SPLITS[0],
    against: Annotated[
        str | Path | None,
        Option("compare with another output of the same chunks, query by query", WAYS, "DIR", read=_folder),
    ] = None,
    against_collection: Annotated[
        str | None, Option("the collection there", WAYS, "NAME", default="of the same name, or the only one")
    ] = None,
    seed: Annotated[
        int, Option("of random samples and halves", WAYS, "N", default="0", read=partial(at_least, least=0))
    ] = 0,
    model: ModelFoldersOption = (),
    devices: RerankDevicesOption = None,
    precision: RerankPrecisionOption = "auto",
    cache_dir: CacheDirOption = None,
    offline: OfflineOption = False,
    trust_remote_code: TrustOption = (),
    html: Annotated[
        str | Path | None,
        Option("also write a page with the results to this file", EVALUATION_OUTPUT, "FILE", read=_file),
    ] = None,
    quiet: Annotated[bool, Option("show no progress", EVALUATION_OUTPUT, short="-q")] = False,
) -> EvaluateConfig:
    """Turn the user's options into a valid `EvaluateConfig`, or raise a `UsageError` that says what is wrong."""
    values = read_options(make_evaluate_config, locals())
    if make_queries and (queries is not None or qrels is not None):
        raise UsageError("--make-queries makes queries and judgements: drop it, or drop --queries and --qrels.")
    if not make_queries and (queries is None or qrels is None):
        missing = "--queries" if queries is None else "--qrels"
        raise UsageError(f"{missing} is missing. Without judgements, --make-queries makes a check of headings.")
    if save_queries is not None and not make_queries:
        raise UsageError("--save-queries writes what --make-queries made. Add that, or drop it.")
    if against_collection is not None and against is None:
        raise UsageError("--against-collection is about the output of --against. Give --against DIR, or drop it.")
    if make_queries and doc_field is not None:
        raise UsageError("--make-queries judges chunks, not documents: drop --doc-field.")
    access = hub_access(
        cache_dir=values.pop("cache_dir"), offline=values.pop("offline"), trusted=values.pop("trust_remote_code")
    )
    values["place"] = SearchPlace(
        output=values["folder"],
        model_folders=values.pop("model"),
        devices=values.pop("devices") or devices_from_environment() or "auto",
        precision=values.pop("precision"),
        hub=access,
    )
    return EvaluateConfig(**values)
