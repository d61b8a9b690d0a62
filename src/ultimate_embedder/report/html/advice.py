"""What needs attention, from rules that are data: symptom, evidence, one change. A rule is an entry of `RULES`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ultimate_embedder.report.html.rollup import CPU, HOST, RollUp
from ultimate_embedder.report.html.words import duration, share, size
from ultimate_embedder.summary import CollectionSummary, PassSummary, RunSummary
from ultimate_embedder.terminal import counted

Level = Literal["problem", "look", "note"]
About = Literal["run", "missing", "collection", "pass", "mitigation", "device", "warning"]
Facts = dict[str, Any]
MOST_PER_RULE = 8

CUT = 0.02  # share of chunks
IDLE = IDLE_DEVICE = 0.25  # shares of time
PADDING = LOADING = REDUCED = 0.1
EQUAL = 0.2  # share of chunks whose text another chunk has
WORST_COSINE = 0.99
OUT_OF_MEMORY = "oom"  # all steps of the ladder together


@dataclass(frozen=True)
class Rule:
    """When something is worth a word, and which; texts are templates over the facts."""

    level: Level
    about: About
    when: Callable[[Facts], bool]
    symptom: str
    evidence: str
    change: str


@dataclass(frozen=True)
class Advice:
    """A rule that applies."""

    level: Level
    symptom: str
    evidence: str
    change: str


RULES = (
    # problem: something is missing, or a promise was broken
    Rule(
        "problem",
        "run",
        lambda f: bool(f["error"]),
        "The run ended with an error",
        "{error}",
        "Resolve this and run the same command again; stored vectors are kept.",
    ),
    Rule(
        "problem",
        "run",
        lambda f: not f["ended"],
        "The end of the run is not recorded",
        "The last event is {seconds} after the first; the process was killed, or is still running.",
        "Run the same command again; it continues from the stored vectors.",
    ),
    Rule(
        "problem",
        "collection",
        lambda f: f["status"] == "failed",
        "{name} failed",
        "{error}",
        "Resolve the cause and run the same command again; stored vectors are kept.",
    ),
    Rule(
        "problem",
        "collection",
        lambda f: f["status"] == "skipped_missing",
        "{name} was not found",
        "--collections names it, and the chunk folder has no such collection.",
        "Correct the name in --collections.",
    ),
    Rule(
        "problem",
        "device",
        lambda f: f["has_ceiling"] and f["peak"] > f["ceiling"] > 0,
        "{name} exceeded its memory ceiling",
        "{peak_words} at most; the ceiling is {ceiling_words}.",
        "Raise --safety-margin, and please report it with events.jsonl.",
    ),
    # look: vectors are fewer or poorer than they could be
    Rule(
        "look",
        "collection",
        lambda f: f["status"] == "partial",
        "{name} is not complete",
        "{error}",
        "Run the same command again; it resumes.",
    ),
    Rule(
        "look",
        "missing",
        lambda f: True,
        "{model} is missing from the vectors",
        "{why}",
        "Run 'ultimate-embedder models pull {model}', then the same command again.",
    ),
    Rule(
        "look",
        "collection",
        lambda f: f["rejected"] > 0,
        "{rejected:,} of {found:,} records of {name} have no vector",
        "Most often: {reason} ({file}).",
        "{advice}",
    ),
    Rule(
        "look",
        "pass",
        lambda f: f["truncated_share"] >= CUT,
        "{model} does not see the end of {chunks} of {collection}",
        "{truncated_words} are longer than {limit}. They lose {tokens_lost:,} of their tokens ({lost_words}).",
        "Use --overlong pool or split, or a model with a longer limit.",
    ),
    Rule(
        "look",
        "pass",
        lambda f: f["worst_cosine"] < WORST_COSINE,
        "{model} loses precision in {dtype}",
        "Cosine similarity to fp32 on texts of {collection}: {worst_cosine:.4f} at worst.",
        "Use --precision fp32.",
    ),
    # note: only time was lost
    Rule(
        "note",
        "mitigation",
        lambda f: f["kind"] == "companion_cpu_fallback",
        "{model} worked on the CPU",
        "{reason}",
        "Use --mode exclusive: each model then has all GPUs in turn.",
    ),
    Rule(
        "note",
        "mitigation",
        lambda f: f["kind"] == "device_lost",
        "{device} was lost during the run",
        "{reason}. Other devices finished its work.",
        "Check the driver and the card before the next run.",
    ),
    Rule(
        "note",
        "mitigation",
        lambda f: f["kind"] == OUT_OF_MEMORY,
        "{device} ran out of memory, and the run continued",
        "{times} for {model}. No vector is missing because of it.",
        "Set a lower --batch-tokens if it costs too much time.",
    ),
    Rule(
        "note",
        "pass",
        lambda f: f["reduced_share"] >= REDUCED,
        "Batches of {model} were smaller than planned",
        "{reduced:,} of {batches:,} batches of {collection} were run in parts, as memory had no room for all rows.",
        "{more_room}",
    ),
    Rule(
        "note",
        "device",
        lambda f: f["several"] and f["modes"] != "exclusive" and f["idle_share"] >= IDLE_DEVICE,
        "{name} had no model for {idle_words} of the encoding time",
        "No lease was held on it in that time. Mode: {modes}.",
        "Use --mode exclusive, in which every model uses all devices.",
    ),
    Rule(
        "note",
        "pass",
        lambda f: f["idle_share"] >= IDLE,
        "Devices waited for texts of {model}",
        "{wait_words} of {busy_words} in {collection}.",
        "In a long run, give the process more CPU cores for tokenising.",
    ),
    Rule(
        "note",
        "pass",
        lambda f: f["padding"] >= PADDING,
        "Padding cost {model} {padding_words} of computation",
        "{padded:,} tokens were computed for {tokens:,} in {collection}.",
        "Embed more chunks in one collection: texts of one length then meet in a batch.",
    ),
    Rule(
        "note",
        "run",
        lambda f: f["loading_share"] >= LOADING,
        "Loading models took {loading_words} of the time",
        "{loading} of {seconds}.",
        "Embed more collections in one run: each model is loaded once.",
    ),
    Rule(
        "note",
        "collection",
        lambda f: f["equal_share"] >= EQUAL,
        "Many chunks of {name} have the text of another",
        "{equal:,} of {embedded:,} chunks share the vector of an equal text.",
        "Remove duplicates before chunking: they appear together in search results.",
    ),
    Rule(
        "note",
        "collection",
        lambda f: f["duplicate_ids"] > 0,
        "{ids} of {name} had the id of an earlier one",
        "They were given ids of their own.",
        "Give every chunk an id of its own.",
    ),
    Rule("note", "warning", lambda f: True, "{where} has a warning", "{message}", "Read it; nothing else is known."),
)


def find_advice(summary: RunSummary, events: RollUp | None, *, ended: bool) -> list[Advice]:
    """Every rule that applies, the worst first; of one rule at most some, and how many more."""
    facts: dict[About, list[Facts]] = {
        "run": [_run(summary, ended)],
        "missing": [each.model_dump() for each in summary.missing_models],
        "collection": [_collection(each) for each in summary.collections],
        "pass": [_pass(each, one) for each in summary.collections for one in each.passes],
        "mitigation": list(_mitigations(summary)),
        "device": list(_devices(summary, events)),
        "warning": list(_warnings(summary)),
    }
    found: list[Advice] = []
    for rule in RULES:
        applies = [fact for fact in facts[rule.about] if rule.when(fact)]
        for fact in applies[:MOST_PER_RULE]:
            words = (each.format_map(fact) for each in (rule.symptom, rule.evidence, rule.change))
            found.append(Advice(rule.level, *words))
        if (more := len(applies) - MOST_PER_RULE) > 0:
            found.append(
                Advice(rule.level, f"{more:,} more like this", "The tables below and summary.json have them.", "")
            )
    return found


def _run(summary: RunSummary, ended: bool) -> Facts:
    loading = sum(each.seconds_by_stage.get("model", 0.0) for each in summary.collections)
    part = loading / summary.seconds if summary.seconds else 0.0
    return {
        "error": summary.error,
        "ended": ended,
        "seconds": duration(summary.seconds),
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
        counts[key] += 1
        reasons.setdefault(key, str(each.details.get("reason", "No reason is recorded")).rstrip("."))
    for key, count in counts.items():
        kind, device, model = key
        times = counted(count, "time")
        yield {"kind": kind, "device": device, "model": model, "times": times, "reason": reasons[key]}


def _devices(summary: RunSummary, events: RollUp | None) -> Iterator[Facts]:
    lanes = {name: lane for name, lane in (events.lanes if events else {}).items() if name != HOST}
    spans = [span for lane in lanes.values() for rows in lane.leases.values() for span in rows]
    encoding = max((span.end for span in spans), default=0.0) - min((span.begin for span in spans), default=0.0)
    modes = ", ".join(sorted({each.mode for each in summary.collections if each.mode})) or "unknown"
    for name, lane in lanes.items():
        leased = [(span.begin, span.end) for rows in lane.leases.values() for span in rows]
        idle = max(0.0, 1 - _covered(leased) / encoding) if encoding and leased else 0.0
        peak, ceiling = max(lane.peak_bytes.values(), default=0), max(lane.ceiling_bytes.values(), default=0)
        yield {
            "name": name,
            "has_ceiling": name != CPU,
            "peak": peak,
            "ceiling": ceiling,
            "peak_words": size(peak),
            "ceiling_words": size(ceiling),
            "several": len(lanes) > 1,
            "idle_share": idle,
            "idle_words": share(idle),
            "modes": modes,
        }


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds in at least one of the spans."""
    total = last = 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, last))
        last = max(last, end)
    return total


def _warnings(summary: RunSummary) -> Iterator[Facts]:
    yield from ({"where": "The run", "message": message} for message in summary.warnings)
    for each in summary.collections:
        yield from ({"where": each.collection, "message": message} for message in each.warnings)
