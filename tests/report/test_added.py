"""A run that only exports adds to the record of the run that made the vectors."""

from __future__ import annotations

from typing import Any

from ultimate_embedder.report import RunSummary, add_exports
from ultimate_embedder.summary import CollectionSummary


def export(kind: str, seconds: float = 1.0) -> dict[str, Any]:
    return {"kind": kind, "path": kind, "rows": 8, "size_bytes": 1, "sha256": kind, "seconds": seconds}


def collection(**changes: Any) -> dict[str, Any]:
    one_pass = {"model": "m", "model_pass": 0, "fingerprint": "f", "weight": 1.0, "devices": ["cpu"], "dtype": "fp32"}
    usual = {
        "collection": "docs",
        "status": "completed",
        "chunks": {"found": 8, "distinct_texts": 8, "embedded": 8, "newly_encoded": 8},
        "passes": [{**one_pass, "texts": 8, "stored_texts": 0, "encoded_texts": 8}],
        "mitigations": [{"type": "oom_bisect", "timestamp": 1.0, "details": {}}],
        "exports": [export("npy"), export("parquet")],
        "warnings": ["of the run"],
        "seconds_by_stage": {"load": 1.0, "model": 1.0, "encode": 5.0, "export": 2.0},
        "seconds": 9.0,
    }
    return {**usual, **changes}


def only_exported(**changes: Any) -> dict[str, Any]:
    usual = {
        "chunks": {"found": 8, "distinct_texts": 8, "embedded": 8, "newly_encoded": 0},
        "mitigations": [],
        "exports": [export("npy", 0.5), export("qdrant", 2.5)],
        "target_qdrant_collection": "docs__m",
        "warnings": ["of the export"],
        "seconds_by_stage": {"load": 1.0, "model": 0.0, "encode": 0.0, "export": 3.0},
    }
    return collection(**{**usual, **changes})


def summary(*collections: dict[str, Any], **changes: Any) -> RunSummary:
    options = {"gradient_checkpointing": True, "exports": [each["kind"] for each in collections[0]["exports"]]}
    return RunSummary.model_validate({"collections": list(collections), "options": options, "seconds": 9.0, **changes})


def added(now: dict[str, Any], **changes: Any) -> CollectionSummary:
    (found,) = add_exports(summary(collection()), summary(now, **changes)).collections
    return found


def test_the_numbers_of_the_run_stay() -> None:
    found = added(only_exported())
    assert found.chunks.newly_encoded == found.passes[0].encoded_texts == 8
    assert [each.type for each in found.mitigations] == ["oom_bisect"]
    assert found.seconds_by_stage["encode"] == 5.0


def test_exports_target_warnings_and_seconds_are_added() -> None:
    run, later = summary(collection()), summary(only_exported())
    record = add_exports(run, later)
    (found,) = record.collections
    assert [(each.kind, each.seconds) for each in found.exports] == [("npy", 0.5), ("parquet", 1.0), ("qdrant", 2.5)]
    assert found.target_qdrant_collection == "docs__m"
    assert found.warnings == ["of the run", "of the export"]
    assert (found.seconds_by_stage["export"], found.seconds, record.seconds) == (5.0, 12.0, 12.0)
    assert record.options is not None
    assert (record.options.model_extra or {})["exports"] == ["npy", "parquet", "qdrant"]


def test_what_the_export_says_about_checkpointing_is_not_about_the_run() -> None:
    said = (
        "gradient checkpointing saves memory in training only; nothing was switched on, no other mitigation was needed"
    )
    assert said not in added(only_exported(warnings=[said])).warnings


def test_an_export_that_failed_is_in_the_record_and_another_one_mends_it() -> None:
    failed = only_exported(status="failed", error="the disk is full", exports=[], passes=[])
    record = add_exports(summary(collection()), summary(failed))
    assert (record.collections[0].status, record.collections[0].error) == ("failed", "the disk is full")
    assert record.collections[0].chunks.newly_encoded == 8
    mended = add_exports(record, summary(only_exported()))
    assert (mended.collections[0].status, mended.collections[0].error) == ("completed", None)
    assert mended.collections[0].chunks.newly_encoded == 8


def test_a_run_that_encoded_something_is_a_run_of_its_own() -> None:
    later = summary(only_exported(chunks={"found": 8, "distinct_texts": 8, "embedded": 8, "newly_encoded": 1}))
    assert add_exports(summary(collection()), later) is later


def test_a_run_over_other_chunks_models_or_collections_is_a_run_of_its_own() -> None:
    fewer = only_exported(chunks={"found": 7, "distinct_texts": 7, "embedded": 7, "newly_encoded": 0})
    other_model = only_exported(passes=[{**collection()["passes"][0], "fingerprint": "g"}])
    for now in (fewer, other_model, only_exported(collection="notes")):
        later = summary(now)
        assert add_exports(summary(collection()), later) is later
