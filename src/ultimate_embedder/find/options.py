"""The options of `search`: name, type, default, help and check of each, in the signature of `make_search_config`.

The command line, the fields of `SearchConfig` and the signature of the Python function `search` are derived from it.
Annotations are evaluated here (no `from __future__ import annotations`), as they are read at run time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ultimate_embedder.config import (
    PRECISIONS,
    CacheDirOption,
    HubAccess,
    OfflineOption,
    Option,
    Precision,
    TrustOption,
    at_least,
    devices_from_environment,
    hub_access,
    parse_names,
    read_options,
    split_words,
)
from ultimate_embedder.devices import DEVICE_WORDS
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import EXAMPLE_URL, ServerAddress, server_address
from ultimate_embedder.find.filters import Condition, read_filter
from ultimate_embedder.find.score_fusion import SCORE_FUSIONS

WHAT = "what to find"
HOW = "how to rank"
WHERE = "where to search"
MODELS = "models"
SEARCH_OUTPUT = "output"

FUSED, SPARSE, HYBRID = "fused", "sparse", "hybrid"
USING_WORDS = (FUSED, SPARSE, HYBRID)
DEFAULT_FUSION = "zscore"
TOP = 10
CANDIDATES = 100
LONGEST_QUESTION = 100_000  # characters
Words = str | Iterable[str]


@dataclass(frozen=True)
class SearchRequest:
    """A question, and how its hits are ranked."""

    question: str
    top: int = TOP
    using: tuple[str, ...] = ()
    fusion: str = DEFAULT_FUSION
    weights: Mapping[str, float] | None = None
    candidates: int = CANDIDATES
    conditions: tuple[Condition, ...] = ()
    rerank: str | None = None


@dataclass(frozen=True)
class SearchPlace:
    """What is searched, and what it is searched with."""

    output: Path
    collections: tuple[str, ...] = ()
    server: ServerAddress | None = None
    target: str | None = None
    model_folders: tuple[str, ...] = ()
    devices: str = "auto"
    precision: str = "auto"
    hub: HubAccess = field(default_factory=HubAccess)


@dataclass(frozen=True)
class SearchConfig:
    """All options of a search. The defaults are those of `make_search_config`."""

    place: SearchPlace
    request: SearchRequest


def _folder(value: str | Path, option: str) -> Path:
    if not Path(value).is_dir():
        raise UsageError(f"{value} is not a folder. Give the --output of an earlier embed.")
    return Path(value)


def check_question(value: str, option: str = "QUESTION") -> str:
    """A question that a model can read."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f'{option} is empty. Write what you want to find, such as "how do I resume a run?"')
    if len(value) > LONGEST_QUESTION:
        raise UsageError(
            f"{option} has {len(value):,} characters, and at most {LONGEST_QUESTION:,} are read. Shorten it."
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option} is not valid Unicode. Check the encoding of your terminal or file.") from None
    return value


def _weights(value: Words | Mapping[str, float], option: str) -> dict[str, float]:
    """Read `NAME=0.7,NAME=0.3`, or a mapping."""
    given = value.items() if isinstance(value, Mapping) else [_weight(word, option) for word in split_words(value)]
    weights: dict[str, float] = {}
    for name, number in given:
        try:
            weights[str(name)] = float(number)
        except (TypeError, ValueError):
            raise UsageError(f"{option} {name}={number}: not a number. Write {option} bge-m3=0.7,bm25=0.3.") from None
        if not 0 <= weights[str(name)] < 1e6:
            raise UsageError(f"{option} {name}={number}: a weight is 0 or more.")
    if not weights:
        raise UsageError(f"{option} is empty. Write {option} bge-m3=0.7,bm25=0.3, or drop it.")
    return weights


def _weight(word: str, option: str) -> tuple[str, str]:
    name, equals, number = word.rpartition("=")
    if not equals or not name:
        raise UsageError(f"{option} {word}: write {option} bge-m3=0.7,bm25=0.3.")
    return name.strip(), number.strip()


def _filter(value: Any, option: str) -> tuple[Condition, ...]:
    return read_filter(value, option)


def _folders(value: Words, option: str) -> tuple[str, ...]:
    folders = [value] if isinstance(value, str) else list(value)
    for folder in folders:
        if not Path(folder).is_dir():
            raise UsageError(f"{option} {folder} is not a folder. Give the folder of a model.")
    return tuple(str(Path(folder).absolute()) for folder in folders)


def _devices(value: Words, option: str) -> str:
    return ",".join(split_words(value))


# `evaluate` has the same
ModelFoldersOption = Annotated[
    Words,
    Option(
        "folder of a model that is not where embed found it; may be repeated",
        MODELS,
        "DIR",
        read=_folders,
        repeatable=True,
    ),
]
RerankDevicesOption = Annotated[
    Words | None,
    Option(
        f"devices of the reranker: {' | '.join(DEVICE_WORDS)}; questions are encoded on the CPU",
        MODELS,
        "DEVICES",
        default="auto",
        read=_devices,
    ),
]
RerankPrecisionOption = Annotated[Precision, Option("number format of the reranker", MODELS, "P", choices=PRECISIONS)]


def make_search_config(
    output: Annotated[str | Path, Option("the --output of embed", WHERE, "OUT", positional=True, read=_folder)],
    question: Annotated[
        str,
        Option(
            "what to find, in the words that you would use; - reads one question per line from standard input",
            WHAT,
            "QUESTION",
            positional=True,
            read=check_question,
        ),
    ],
    *,
    top: Annotated[int, Option("number of hits", WHAT, "N", default=str(TOP), read=partial(at_least, least=1))] = TOP,
    filter: Annotated[
        str | Mapping[str, Any] | Iterable[str],
        Option(
            "only chunks with this value in their metadata; a,b means a or b; may be repeated, then all must hold",
            WHAT,
            "KEY=VALUE",
            read=_filter,
            repeatable=True,
        ),
    ] = (),
    collection: Annotated[
        Words | None, Option("collections to search", WHERE, "NAME,...", default="all", read=parse_names)
    ] = None,
    using: Annotated[
        Words | None,
        Option(
            f"models to search with, or {' | '.join(USING_WORDS)}",
            HOW,
            "MODEL,...",
            default="all vectors that there are",
            read=parse_names,
        ),
    ] = None,
    fusion: Annotated[
        str, Option("how scores of several vectors are fused", HOW, "METHOD", choices=SCORE_FUSIONS)
    ] = DEFAULT_FUSION,
    weights: Annotated[
        Words | Mapping[str, float] | None,
        Option("what each vector weighs in the fusion", HOW, "NAME=W,...", default="as in embed", read=_weights),
    ] = None,
    candidates: Annotated[
        int,
        Option(
            "points of each vector that are fused, and points that are reranked",
            HOW,
            "N",
            default=str(CANDIDATES),
            read=partial(at_least, least=1),
        ),
    ] = CANDIDATES,
    rerank: Annotated[
        str | None, Option("sort the candidates with this reranker, such as bge-reranker-v2-m3", HOW, "MODEL")
    ] = None,
    url: Annotated[
        str | None,
        Option(
            f"search on this Qdrant server, for example {EXAMPLE_URL}", WHERE, "URL", default="the shard in the output"
        ),
    ] = None,
    target: Annotated[
        str | None, Option("name of the collection or alias there", WHERE, "NAME", default="as upload has recorded it")
    ] = None,
    api_key: Annotated[str | None, Option("the API key", WHERE, only_in_python=True)] = None,
    api_key_env: Annotated[
        str | None,
        Option("environment variable that holds the API key", WHERE, "VAR", default="QDRANT_API_KEY, if it is set"),
    ] = None,
    ca_cert: Annotated[str | Path | None, Option("trust the certificates in this file (PEM)", WHERE, "FILE")] = None,
    model: ModelFoldersOption = (),
    devices: RerankDevicesOption = None,
    precision: RerankPrecisionOption = "auto",
    cache_dir: CacheDirOption = None,
    offline: OfflineOption = False,
    trust_remote_code: TrustOption = (),
) -> SearchConfig:
    """Turn the user's options into a valid `SearchConfig`, or raise a `UsageError` that says what is wrong."""
    values = read_options(make_search_config, locals())
    if url is not None and not url.strip():
        raise UsageError(f"--url is empty. Write {EXAMPLE_URL}, for example.")
    if url is None and (target or api_key or api_key_env or ca_cert):
        raise UsageError(f"--target, --api-key-env and --ca-cert are about a server. Add --url {EXAMPLE_URL}.")
    place = SearchPlace(
        output=values["output"],
        collections=values["collection"] or (),
        server=server_address(url, api_key, api_key_env, ca_cert) if url is not None else None,
        target=target,
        model_folders=values["model"],
        devices=values["devices"] or devices_from_environment() or "auto",
        precision=precision,
        hub=hub_access(cache_dir=cache_dir, offline=offline, trusted=trust_remote_code),
    )
    request = SearchRequest(
        question=values["question"],
        top=values["top"],
        using=values["using"] or (),
        fusion=values["fusion"],
        weights=values["weights"],
        candidates=values["candidates"],
        conditions=values["filter"],
        rerank=rerank,
    )
    return SearchConfig(place, request)
