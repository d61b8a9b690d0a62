"""Rules of the report: each applies to its symptom, says what the evidence is, and proposes one change."""

from __future__ import annotations

from typing import Any

import pytest

from ultimate_embedder.report.html.advice import RULES, find_advice
from ultimate_embedder.summary import (
    Agreement,
    ChunkCounts,
    CollectionSummary,
    DeviceSummary,
    MissingModel,
    MitigationSummary,
    PassSummary,
    RunSummary,
)


def one_pass(**values: Any) -> CollectionSummary:
    known = {"model": "m", "model_pass": 0, "fingerprint": "f", "weight": 1, "devices": ["cpu"], "dtype": "float16"}
    counts = {
        "texts": 100,
        "stored_texts": 0,
        "stored_chunks": 100,
        "batches": 10,
        "tokens": 1000,
        "padded_tokens": 1000,
    }
    return collection(passes=[PassSummary(**{**known, **counts, **values})], mode="simultaneous")


def collection(**values: Any) -> CollectionSummary:
    return CollectionSummary(collection="docs", **{"status": "completed", **values})


def mitigated(kind: str, **details: Any) -> CollectionSummary:
    return collection(mitigations=[MitigationSummary(type=kind, timestamp=0.0, details=details)] * 3)


CASES: list[tuple[str, str, CollectionSummary]] = [
    ("docs failed", "Resolve", collection(status="failed", error="no disk")),
    ("docs was not found", "--collections", collection(status="skipped_missing")),
    ("docs is not complete", "resumes", collection(status="partial", error="stopped")),
    ("3 of 9 records of docs", "Repair", collection(chunks=ChunkCounts(found=9, rejected=3))),
    ("m does not see the end of 5 chunks", "--overlong pool", one_pass(truncated=5, tokens_lost=50, lost_share=0.5)),
    (
        "m loses precision in int8",
        "--precision fp32",
        one_pass(dtype="int8", agreement=Agreement(texts=9, mean_cosine=0.99, worst_cosine=0.9)),
    ),
    ("m worked on the CPU", "--mode exclusive", mitigated("companion_cpu_fallback", model="m", reason="no room")),
    ("cuda:1 was lost", "driver", mitigated("device_lost", device="cuda:1", reason="it hangs")),
    ("Vectors from node-2 were lost", "network", mitigated("answer_lost", device="node-2", reason="ObjectLostError")),
    ("cuda:1 ran out of memory", "--batch-tokens", mitigated("oom_bisect", device="cuda:1", model="m")),
    ("Batches of m were smaller", "--mode exclusive", one_pass(reduced_batches=4)),
    ("Devices waited for texts of m", "CPU cores", one_pass(wait_seconds=5, forward_seconds=5)),
    ("Padding cost m 20%", "more chunks", one_pass(padding_ratio=1.2, padded_tokens=1200)),
    ("Many chunks of docs", "duplicates", collection(chunks=ChunkCounts(found=9, embedded=9, distinct_texts=3))),
    ("2 chunks of docs had the id", "an id of its own", collection(chunks=ChunkCounts(duplicate_ids=2))),
    ("Loading models took 50%", "more collections", collection(seconds_by_stage={"model": 5.0})),
    ("docs has a warning", "Read it", collection(warnings=["odd"])),
]


@pytest.mark.parametrize(("symptom", "change", "given"), CASES, ids=[case[0] for case in CASES])
def test_a_symptom_is_named_with_one_change(symptom: str, change: str, given: CollectionSummary) -> None:
    [found] = find_advice(RunSummary(seconds=10, collections=[given]), ended=True)
    assert found.symptom.startswith(symptom)
    assert change in found.change


def test_a_run_without_symptoms_needs_no_attention() -> None:
    assert find_advice(RunSummary(seconds=10, collections=[one_pass()]), ended=True) == []


def test_errors_missing_models_and_a_missing_end_come_first() -> None:
    summary = RunSummary(error="no chunks", missing_models=[MissingModel(model="m", why="offline")])
    found = find_advice(summary, ended=False)
    assert [each.level for each in found] == ["problem", "problem", "look"]
    assert found[0].evidence == "no chunks"
    assert "models pull m" in found[2].change


def device(name: str, **fields: Any) -> DeviceSummary:
    known: dict[str, Any] = {"total_bytes": 12, "ceiling_bytes": 10, "ceiling_reason": "--gpu0-ceiling"}
    return DeviceSummary(device=name, **{**known, **fields})


def encoding(mode: str, *mitigations: MitigationSummary) -> CollectionSummary:
    return collection(mode=mode, seconds_by_stage={"encode": 10.0}, mitigations=list(mitigations))


def test_a_device_over_its_ceiling_is_a_problem_and_says_what_set_it() -> None:
    over = device("cuda:0", peak_bytes=12, forward_seconds=10.0, leased_seconds=10.0)
    [found] = find_advice(RunSummary(seconds=10, devices=[over], collections=[encoding("single")]), ended=True)
    assert (found.level, found.symptom) == ("problem", "cuda:0 exceeded its memory ceiling")
    assert "set by: --gpu0-ceiling" in found.evidence


def test_a_device_without_models_is_idle() -> None:
    busy = device("cuda:0", forward_seconds=9.5, leased_seconds=10.0)
    idle = device("cuda:1", forward_seconds=3.0, leased_seconds=4.0)
    summary = RunSummary(seconds=10, devices=[busy, idle], collections=[encoding("simultaneous")])
    [found] = find_advice(summary, ended=True)
    assert found.symptom == "cuda:1 was idle 70% of the encoding time"
    assert found.evidence.startswith("No model had it for 60% of that time. It computed for 3.0 s of 10.0 s")
    assert "--mode exclusive" in found.change
    summary.collections[0].mode = "exclusive"
    assert find_advice(summary, ended=True) == []


def test_an_idle_gpu_is_explained_by_companions_on_the_cpu() -> None:
    placed = MitigationSummary(
        type="companion_cpu_fallback",
        timestamp=0.0,
        details={"model": "bge-m3", "before": "cuda:0", "after": "cpu", "reason": "no other GPU has 900 MB for it"},
    )
    devices = [device("cuda:0", forward_seconds=9.0, leased_seconds=10.0), device("cuda:1", forward_seconds=5.7)]
    summary = RunSummary(seconds=10, devices=devices, collections=[encoding("simultaneous", placed)])
    [idle] = find_advice(summary, ended=True)
    assert idle.symptom == "cuda:1 was idle 43% of the encoding time"
    assert "bge-m3 worked on the CPU, because no other GPU has 900 MB for it." in idle.evidence
    assert "--mode exclusive" in idle.change


def test_names_with_braces_are_not_templates() -> None:
    [found] = find_advice(RunSummary(collections=[collection(status="failed", error="{0} {x.y} {")]), ended=True)
    assert found.evidence == "{0} {x.y} {"


def test_a_rule_that_applies_to_everything_is_told_a_few_times() -> None:
    failed = [collection(status="failed", error="no disk")] * 50
    found = find_advice(RunSummary(collections=failed), ended=True)
    assert len(found) == 9
    assert found[-1].symptom == "42 more like this"


def test_rules_are_ordered_by_level() -> None:
    levels = [rule.level for rule in RULES]
    assert levels == sorted(levels, key=("problem", "look", "note").index)
