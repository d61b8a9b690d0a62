"""What the summaries of two runs say, side by side."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ultimate_embedder.report.compare.result import Difference, Figure, PassComparison
from ultimate_embedder.report.html.words import size
from ultimate_embedder.summary import ChunkCounts, CollectionSummary, ModelSummary, PassSummary, RunOptions, RunSummary

OWN_OPTIONS = frozenset(["output", "summary", "quiet", "dry_run", "no_report", "otel"])
"""Options that say where and how something is written: they differ, and mean nothing."""
COUNTS = (
    "found",
    "embedded",
    "rejected",
    "distinct_texts",
    "newly_encoded",
    "truncated",
    "tokens_lost",
    "pooled",
    "split_points",
    "duplicate_ids",
)
MODEL_FACTS = ("hub_id", "revision", "digest", "source", "dim", "max_tokens", "document_prompt", "weight")
PASS_FACTS = ("dtype", "devices")
PASS_FIGURES = (
    ("texts encoded", "", "encoded_texts"),
    ("texts per second", "/s", "texts_per_second"),
    ("tokens per second", "/s", "tokens_per_second"),
    ("tokens", "", "tokens"),
    ("padding ratio", "x", "padding_ratio"),
    ("batches", "", "batches"),
    ("batches run in parts", "", "reduced_batches"),
    ("rows recomputed in fp32", "", "fp32_rows"),
    ("peak memory allocated", "B", "peak_memory_bytes"),
    ("peak memory reserved", "B", "peak_reserved_bytes"),
    ("seconds", "s", "seconds"),
    ("forward", "s", "forward_seconds"),
    ("devices idle", "s", "wait_seconds"),
)
ALWAYS = ("encoded_texts",)  # the rest of a pass is measured only where it encoded something


def option_differences(a: RunSummary | None, b: RunSummary | None) -> tuple[Difference, ...]:
    """Options that differ; an option that only one version has is compared with nothing."""
    flat = [dict(_options(each.options)) if each and each.options else {} for each in (a, b)]
    return _differences(flat[0], flat[1]) if all(flat) else ()


def environment_differences(a: RunSummary | None, b: RunSummary | None) -> tuple[Difference, ...]:
    """Versions, machines and devices, as far as they differ."""
    facts = [{**each.versions, **each.machine, "devices": _devices(each)} if each else {} for each in (a, b)]
    return _differences(facts[0], facts[1]) if all(facts) else ()


def _devices(run: RunSummary) -> list[str]:
    return [f"{each.device} ({size(each.total_bytes)}, ceiling {size(each.ceiling_bytes)})" for each in run.devices]


def counts(a: CollectionSummary, b: CollectionSummary) -> tuple[Figure, ...]:
    """Chunks of a collection."""
    return tuple(
        Figure(name.replace("_", " "), "", _count(a.chunks, name), _count(b.chunks, name))
        for name in COUNTS
        if _count(a.chunks, name) or _count(b.chunks, name)
    )


def timings(a: CollectionSummary, b: CollectionSummary) -> tuple[Figure, ...]:
    """Seconds in all, and by stage."""
    stages = dict.fromkeys([*a.seconds_by_stage, *b.seconds_by_stage])
    found = [Figure(stage, "s", a.seconds_by_stage.get(stage), b.seconds_by_stage.get(stage)) for stage in stages]
    return (Figure("all", "s", a.seconds, b.seconds), *(each for each in found if each.a or each.b))


def mitigations(a: CollectionSummary, b: CollectionSummary) -> tuple[Figure, ...]:
    """How often each kind of mitigation was taken."""
    of_a, of_b = Counter[str](), Counter[str]()
    for side, counted in ((a, of_a), (b, of_b)):
        for each in side.mitigations:
            counted[each.type] += each.times
    return tuple(Figure(kind, "", of_a[kind], of_b[kind]) for kind in sorted({*of_a, *of_b}))


def model_differences(a: CollectionSummary, b: CollectionSummary) -> tuple[Difference, ...]:
    """What differs of the models, of their passes, and of the fusion."""
    found = [
        Difference("models", _names(a), _names(b)),
        Difference("fusion", *(each.fusion.method if each.fusion else None for each in (a, b))),
        Difference("mode", a.mode, b.mode),
        *_of_models(a, b),
    ]
    return tuple(each for each in found if each.a != each.b)


def passes(of: CollectionSummary, to: CollectionSummary) -> tuple[PassComparison, ...]:
    """What each model did, by name; models that only one output has are set against each other, in order."""
    of_a, of_b = ({one.model: one for one in each.passes} for each in (of, to))
    only_a = [model for model in of_a if model not in of_b]
    only_b = [model for model in of_b if model not in of_a]
    pairs: list[tuple[str | None, str | None]] = [(model, model) for model in of_a if model in of_b]
    pairs += itertools.zip_longest(only_a, only_b)
    return tuple(PassComparison(a, b, tuple(_figures(of_a.get(a or ""), of_b.get(b or "")))) for a, b in pairs)


def _figures(a: PassSummary | None, b: PassSummary | None) -> Iterator[Figure]:
    for name, unit, key in PASS_FIGURES:
        of_a, of_b = (_measured(each, key) for each in (a, b))
        if of_a or of_b:
            yield Figure(name, unit, of_a, of_b)


def _measured(one: PassSummary | None, key: str) -> float | None:
    if one is None or (not one.encoded_texts and key not in ALWAYS):
        return None
    return float(getattr(one, key))


def _count(chunks: ChunkCounts, name: str) -> int:
    return int(getattr(chunks, name))


def _names(collection: CollectionSummary) -> list[str]:
    return [each.model for each in collection.models]


def _of_models(a: CollectionSummary, b: CollectionSummary) -> Iterator[Difference]:
    of_a, of_b = ({each.model: each for each in side.models} for side in (a, b))
    for model in (name for name in of_a if name in of_b):
        yield from (_difference(model, fact, of_a[model], of_b[model]) for fact in MODEL_FACTS)
    done_a, done_b = ({one.model: one for one in side.passes} for side in (a, b))
    for model in (name for name in done_a if name in done_b):
        yield from (_difference(model, fact, done_a[model], done_b[model]) for fact in PASS_FACTS)


def _difference(model: str, fact: str, a: ModelSummary | PassSummary, b: ModelSummary | PassSummary) -> Difference:
    return Difference(f"{model} {fact.replace('_', ' ')}", getattr(a, fact), getattr(b, fact))


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    names = dict.fromkeys(itertools.chain(a, b))
    return tuple(
        Difference(name, a.get(name), b.get(name))
        for name in names
        if a.get(name) != b.get(name) and name not in OWN_OPTIONS
    )


def _options(options: RunOptions) -> Iterator[tuple[str, Any]]:
    values = options.model_dump(mode="json")
    yield "models", [f"{each.name}={each.weight:g}" for each in options.models]
    yield from _flat({name: value for name, value in values.items() if name != "models"})


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
