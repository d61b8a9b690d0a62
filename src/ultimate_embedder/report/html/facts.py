"""The facts that the rules of the report look at, by what they are about, with words for their templates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from ultimate_embedder.execution import COMPANION_TO_CPU
from ultimate_embedder.report.html.words import duration, share, size
from ultimate_embedder.summary import CollectionSummary, PassSummary, RunSummary
from ultimate_embedder.terminal import counted
from ultimate_embedder.types import is_cpu

About = Literal["run", "missing", "collection", "pass", "mitigation", "device", "node", "warning"]
Facts = dict[str, Any]
OUT_OF_MEMORY = "oom"  # all steps of the ladder together
IDLE_DEVICE = 0.25  # share of the time of encoding


def find_facts(summary: RunSummary, *, ended: bool) -> dict[About, list[Facts]]:
    """All facts of a run."""
    devices = list(_devices(summary))
    # an idle device tells of the companions that it had no room for
    told = {COMPANION_TO_CPU.kind} if any(each["is_unused"] for each in devices) else set()
    return {
        "run": [_run(summary, ended)],
        "missing": [each.model_dump() for each in summary.missing_models],
        "collection": [_collection(each) for each in summary.collections],
        "pass": [_pass(each, one) for each in summary.collections for one in each.passes],
        "mitigation": [each for each in _mitigations(summary) if each["kind"] not in told],
        "device": devices,
        "node": list(_nodes(summary)),
        "warning": list(_warnings(summary)),
    }


def _run(summary: RunSummary, ended: bool) -> Facts:
    starting = summary.seconds_by_stage.get("start", 0.0)
    loading = sum(each.seconds_by_stage.get("model", 0.0) for each in summary.collections)
    part = loading / summary.seconds if summary.seconds else 0.0
    return {
        "error": summary.error,
        "ended": ended,
        "seconds": duration(summary.seconds),
        "starting": duration(starting),
        "starting_s": starting,
        "starting_share": starting / summary.seconds if summary.seconds else 0.0,
        "starting_words": share(starting / summary.seconds) if summary.seconds else "",
        "loading": duration(loading),
        "loading_share": part,
        "loading_words": share(part),
    }


def _collection(each: CollectionSummary) -> Facts:
    counts = each.chunks
    most = max(each.rejected_by_reason, key=lambda group: group.records, default=None)
    equal = max(0, counts.embedded - counts.distinct_texts) if counts.distinct_texts else 0
    repair = "Repair them in the chunk files and run the same command again; only they are computed."
    return {
        **counts.model_dump(),
        "name": each.collection,
        "status": each.status,
        "error": each.error or "",
        "reason": most.reason if most else "see summary.json",
        "file": most.file if most else "",
        "advice": (most.advice if most else "") or repair,
        "ids": counted(counts.duplicate_ids, "chunk"),
        "equal": equal,
        "equal_share": equal / max(1, counts.embedded),
    }


def _pass(collection: CollectionSummary, one: PassSummary) -> Facts:
    limit = next((each.max_tokens for each in collection.models if each.model == one.model), None)
    busy = one.wait_seconds + one.forward_seconds
    part = one.truncated / max(1, one.stored_chunks)
    return {
        "collection": collection.collection,
        "model": one.model,
        "dtype": one.dtype,
        "limit": f"{limit:,} tokens" if limit else "its token limit",
        "chunks": counted(one.truncated, "chunk"),
        "truncated_share": part,
        "truncated_words": share(part),
        "tokens_lost": one.tokens_lost,
        "lost_words": share(one.lost_share),
        "worst_cosine": one.agreement.worst_cosine if one.agreement else 1.0,
        "more_room": "A card with more memory avoids it; the vectors are the same."
        if collection.mode in ("exclusive", "single")
        else "Use --mode exclusive: each model then has all devices in turn.",
        "reduced": one.reduced_batches,
        "batches": one.batches,
        "reduced_share": one.reduced_batches / max(1, one.batches),
        "idle_share": one.wait_seconds / busy if busy else 0.0,
        "wait_words": duration(one.wait_seconds),
        "busy_words": duration(busy),
        "padding": one.padding_ratio - 1,
        "padding_words": share(one.padding_ratio - 1),
        "padded": one.padded_tokens,
        "tokens": one.tokens,
    }


def _mitigations(summary: RunSummary) -> Iterator[Facts]:
    """One for each kind, device and model; the steps of the ladder are one kind."""
    counts: Counter[tuple[str, str, str]] = Counter()
    reasons: dict[tuple[str, str, str], str] = {}
    for each in (each for collection in summary.collections for each in collection.mitigations):
        kind = OUT_OF_MEMORY if each.type.startswith("oom_") else each.type
        key = (kind, str(each.details.get("device", "a device")), str(each.details.get("model", "a model")))
        counts[key] += each.times
        reasons.setdefault(key, str(each.details.get("reason", "No reason is recorded")).rstrip("."))
    for key, count in counts.items():
        kind, device, model = key
        times = counted(count, "time")
        yield {"kind": kind, "device": device, "model": model, "times": times, "reason": reasons[key]}


def _devices(summary: RunSummary) -> Iterator[Facts]:
    """Cards, with what they did while the run encoded."""
    encoding = sum(each.seconds_by_stage.get("encode", 0.0) for each in summary.collections)
    modes = sorted({each.mode for each in summary.collections if each.mode})
    cards = [each for each in summary.devices if not is_cpu(each.device)]
    fallback = next((each for each in _mitigations(summary) if each["kind"] == COMPANION_TO_CPU.kind), None)
    for each in cards:
        idle, unleased = (
            max(0.0, 1 - seconds / encoding) if encoding else 0.0
            for seconds in (each.forward_seconds, each.leased_seconds)
        )
        if fallback is not None:
            because = f"{fallback['model']} worked on the CPU, because {fallback['reason']}"
        else:
            because = f"No model had it for {share(unleased)} of that time"
        yield {
            "name": each.device,
            "peak": each.peak_bytes,
            "ceiling": each.ceiling_bytes,
            "peak_words": size(each.peak_bytes),
            "ceiling_words": size(each.ceiling_bytes),
            "ceiling_reason": each.ceiling_reason,
            "is_unused": len(cards) > 1
            and modes != ["exclusive"]
            and idle >= IDLE_DEVICE
            and (unleased >= IDLE_DEVICE or fallback is not None),
            "idle_words": share(idle),
            "busy_words": duration(each.forward_seconds),
            "encoding_words": duration(encoding),
            "because": because,
            "modes": ", ".join(modes) or "unknown",
        }


def _nodes(summary: RunSummary) -> Iterator[Facts]:
    for each in summary.nodes:
        yield {
            "name": each.node,
            "address": each.address,
            "refused": each.refused.rstrip(".") if each.refused is not None else None,
            "lost": each.lost,
            "times": counted(each.lost, "time"),
            "reason": each.losses[-1].reason.rstrip(".") if each.losses else "No reason is recorded",
        }


def _warnings(summary: RunSummary) -> Iterator[Facts]:
    # what became of nodes has rules of its own
    known = [f"{each.node} was lost (" for each in summary.nodes if each.lost]
    known += [f"{each.node} ({each.address}) was refused: " for each in summary.nodes if each.refused is not None]
    said = [("The run", message) for message in summary.warnings]
    said += [(each.collection, message) for each in summary.collections for message in each.warnings]
    for where, message in said:
        if not message.startswith(tuple(known)):
            yield {"where": where, "message": message}
