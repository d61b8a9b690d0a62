"""Add what a later run exported to the summary of the run that made the vectors."""

from __future__ import annotations

from collections.abc import Sequence

from ultimate_embedder.report.summary import about_checkpointing
from ultimate_embedder.summary import CollectionSummary, ExportSummary, RunOptions, RunSummary

UNFINISHED = ("failed", "partial")


def add_exports(run: RunSummary, later: RunSummary) -> RunSummary:
    """The summary of `run` with the exports of `later`; just `later` where that was a run of its own.

    It was one if it encoded something, or if it was about other chunks, models or collections.
    """
    pairs = list(zip(run.collections, later.collections, strict=False))
    same_names = [each.collection for each in run.collections] == [each.collection for each in later.collections]
    if not same_names or not all(_are_of_the_same(before, now) for before, now in pairs):
        return later
    collections = [_with_exports(before, now) for before, now in pairs]
    export_seconds = sum(now.seconds_by_stage["export"] for now in later.collections)
    return run.model_copy(
        update={
            "collections": collections,
            "options": _options(run, later),
            "error": later.error,
            "warnings": _joined(run.warnings, later.warnings),
            "seconds": run.seconds + export_seconds,
        }
    )


def _are_of_the_same(before: CollectionSummary, now: CollectionSummary) -> bool:
    if now.chunks.newly_encoded:
        return False
    if now.status in UNFINISHED:  # how far it got is not known; that it failed belongs into the record
        return True
    counts = [(each.chunks.found, each.chunks.distinct_texts, each.chunks.embedded) for each in (before, now)]
    fingerprints = [[each.fingerprint for each in collection.passes] for collection in (before, now)]
    return counts[0] == counts[1] and fingerprints[0] == fingerprints[1]


def _with_exports(before: CollectionSummary, now: CollectionSummary) -> CollectionSummary:
    export_seconds = now.seconds_by_stage["export"]
    stages = {**before.seconds_by_stage, "export": before.seconds_by_stage.get("export", 0.0) + export_seconds}
    own = [warning for warning in now.warnings if warning != about_checkpointing(now)]
    return before.model_copy(
        update={
            "status": now.status,
            "error": now.error,
            "exports": _newest(before.exports, now.exports),
            "target_qdrant_collection": now.target_qdrant_collection or before.target_qdrant_collection,
            "warnings": _joined(before.warnings, own),
            "seconds_by_stage": stages,
            "seconds": before.seconds + export_seconds,
        }
    )


def _newest(before: Sequence[ExportSummary], now: Sequence[ExportSummary]) -> list[ExportSummary]:
    """One entry for each kind: the later one, at the place of the earlier."""
    return list({each.kind: each for each in (*before, *now)}.values())


def _options(run: RunSummary, later: RunSummary) -> RunOptions | None:
    if run.options is None or later.options is None:
        return run.options
    kinds = [list((each.model_extra or {}).get("exports", ())) for each in (run.options, later.options)]
    return run.options.model_copy(update={"exports": list(dict.fromkeys(kinds[0] + kinds[1]))})


def _joined(before: Sequence[str], now: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*before, *now]))
