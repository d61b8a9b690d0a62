"""How the vectors of a collection were made, as its exports record it: queries are encoded in the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ultimate_embedder.description import PassDescription, read_description
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import (
    PointsFile,
    VectorOrigin,
    read_export_journal,
    read_origin,
    read_sparse_facts,
)
from ultimate_embedder.models import find_spec
from ultimate_embedder.output import CollectionOutput, Output
from ultimate_embedder.summary import CollectionSummary, RunSummary
from ultimate_embedder.types import UNNAMED, SparseFacts, VectorSpec
from ultimate_embedder.vectors import FUSIONS, Candidate, Fusion, Member, plan_fusion

SEARCHED_KINDS = ("qdrant", "parquet")
"""Exports that can be searched, the preferred one first."""
AGAIN = "Run the same embed command again: vectors that are stored are not computed again."


@dataclass(frozen=True)
class RecordedModel:
    """A model that made vectors, and how it encoded texts."""

    name: str
    digest: str
    dim: int | None = None
    """What its vectors were cut to (Matryoshka)."""
    max_tokens: int | None = None
    token_cap: int | None = None
    pools: bool = False
    overlap: int | None = None


@dataclass(frozen=True)
class RecordedVectors:
    """The models of a collection, how their vectors were combined, and the vectors that came out."""

    models: tuple[RecordedModel, ...]
    fusion: Fusion
    vectors: tuple[VectorSpec, ...]
    fingerprint: str | None = None
    """Equal fingerprints mean comparable vectors; None if an earlier version wrote the output."""
    sparse: tuple[SparseFacts, ...] = ()
    """What is known of the sparse vectors."""

    def label(self, vector: str) -> str:
        """What a vector is called among people: the models that made it."""
        return vector if vector != UNNAMED else "+".join(model.name for model in self.models)


def read_recorded(output: Output, name: str, kinds: Sequence[str] = SEARCHED_KINDS) -> RecordedVectors:
    """How the vectors of a collection were made: from the first of these exports that says it, else from the summary.

    Raises `UsageError` if nothing says it.
    """
    collection = output[name]
    for kind in kinds:
        origin = _exported_origin(collection, kind)
        if origin is not None:
            return _from_origin(collection, origin, kind)
    summary = output.read_summary()
    if summary is None or summary.options is None:
        raise UsageError(
            f"{collection.folder} has no export that says which models made its vectors, and {output.folder} has no "
            f"summary of a finished run. {AGAIN}"
        )
    return _from_summary(summary, _entry(output, summary, name))


def summary_fusion(summary: RunSummary, collection: CollectionSummary) -> Fusion:
    """The fusion of a collection, as the summary of the run says."""
    members = [
        Candidate(each.model, each.weight, each.dim, spec.matryoshka_dims if spec else ())
        for each in collection.dense_passes
        for spec in [find_spec(each.model)]
    ]
    return plan_fusion(summary.options.fusion if summary.options else "named", members)


def _exported_origin(collection: CollectionOutput, kind: str) -> VectorOrigin | None:
    noted = read_export_journal(collection.folder).get(kind, {})
    if (origin := read_origin(noted.get("origin"))) is not None:
        return origin
    if kind == "parquet" and collection.points_file.exists():  # copied without the journal
        return read_origin(PointsFile.open(collection.points_file).origin)
    return None


def _from_origin(collection: CollectionOutput, origin: VectorOrigin, kind: str) -> RecordedVectors:
    try:
        models = tuple(_model(collection, each) for each in origin.passes if each.get("kind") != "sparse")
        dense = tuple(
            VectorSpec(_text(each["name"]), _whole(each["dim"]))
            for each in origin.vectors
            if each.get("kind") != "sparse"
        )
        sparse = read_sparse_facts(list(origin.sparse))
        named = [_text(each["name"]) for each in origin.vectors if each.get("kind") == "sparse"]
        fusion = _fusion(origin.fusion, models, dense)
        if not models or fusion.vectors != dense or named != [facts.name for facts in sparse]:
            raise ValueError("vectors")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise UsageError(
            f"the record of how the {kind} export in {collection.folder} was made is damaged ({error}). {AGAIN}"
        ) from error
    return RecordedVectors(models, fusion, (*dense, *map(_sparse_spec, sparse)), origin.fingerprint, sparse)


def _model(collection: CollectionOutput, recorded: Mapping[str, Any]) -> RecordedModel:
    limit = recorded.get("max_tokens")
    exact = _loaded_limit(collection, recorded)
    return RecordedModel(
        name=_text(recorded["model"]),
        digest=_text(recorded["model_digest"]),
        dim=None if recorded.get("dim") is None else _whole(recorded["dim"]),
        max_tokens=exact,
        token_cap=_whole(limit) if limit is not None and exact is None else None,
        pools=recorded.get("overlong") == "pool",
        overlap=None if recorded.get("overlap") is None else _whole(recorded["overlap"], least=0),
    )


def _loaded_limit(collection: CollectionOutput, recorded: Mapping[str, Any]) -> int | None:
    """The token limit that the encoder of a pass had, if its folder is there and says it."""
    for stored in collection.passes:
        described = read_description(stored.folder)
        if not isinstance(described, PassDescription) or described.identity is None or described.encoder is None:
            continue
        if described.identity.as_dict() == dict(recorded):
            return described.encoder.max_tokens
    return None


def _fusion(recorded: Mapping[str, Any] | None, models: Sequence[RecordedModel], specs: Sequence[VectorSpec]) -> Fusion:
    if recorded is None:
        return Fusion("named", (Member(models[0].name, 1.0, specs[0].dim or 0),))
    fusion = read_fusion(recorded)
    if fusion is None or [each.name for each in fusion.members] != [each.name for each in models]:
        raise ValueError("fusion")
    return fusion


def read_fusion(recorded: Mapping[str, Any] | None) -> Fusion | None:
    """A fusion as an export has it; None if it is none, whatever it is."""
    try:
        members = tuple(_member(each) for each in recorded["members"]) if recorded else ()
        method = recorded["method"] if recorded else ""
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return Fusion(method, members) if members and method in FUSIONS else None


def _member(recorded: Mapping[str, Any]) -> Member:
    weight = float(recorded["weight"])
    if not 0 <= weight < math.inf:
        raise ValueError(f"{weight} is no weight")
    return Member(_text(recorded["name"]), weight, _whole(recorded["dim"]))


def _from_summary(summary: RunSummary, entry: CollectionSummary) -> RecordedVectors:
    """For outputs of versions whose exports do not say it."""
    options = summary.options
    assert options is not None
    models = tuple(
        RecordedModel(
            name=model.model,
            digest=model.digest,
            dim=options.dim,
            max_tokens=options.max_tokens,
            token_cap=options.token_cap,
            pools=options.overlong == "pool",
            overlap=options.overlap,
        )
        for model in entry.dense_models
    )
    fusion, sparse = summary_fusion(summary, entry), tuple(entry.sparse)
    return RecordedVectors(models, fusion, (*fusion.vectors, *map(_sparse_spec, sparse)), None, sparse)


def _sparse_spec(facts: SparseFacts) -> VectorSpec:
    return VectorSpec(facts.name, None, "sparse")


def _entry(output: Output, summary: RunSummary, collection: str) -> CollectionSummary:
    for each in summary.collections:
        if each.collection == collection and each.passes:
            return each
    raise UsageError(
        f"the last run into {output.folder} has no vectors of {collection!r}, so its summary does not say how "
        "they were computed. Run embed again for that collection, without --skip-existing."
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
        raise ValueError(f"{value!r} is no size")
    return value
