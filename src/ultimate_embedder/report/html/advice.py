"""What needs attention, from rules that are data: symptom, evidence, one change. A rule is an entry of `RULES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ultimate_embedder.report.html.facts import OUT_OF_MEMORY, About, Facts, find_facts
from ultimate_embedder.summary import RunSummary

Level = Literal["problem", "look", "note"]
MOST_PER_RULE = 8

CUT = 0.02  # share of chunks
IDLE = 0.25  # share of time
PADDING = LOADING = REDUCED = 0.1
STARTING = 0.25
LEAST_START_S = 10.0  # shorter is not worth a word
EQUAL = 0.2  # share of chunks whose text another chunk has
WORST_COSINE = 0.99


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
        lambda f: f["peak"] > f["ceiling"] > 0,
        "{name} exceeded its memory ceiling",
        "{peak_words} at most; the ceiling is {ceiling_words}, set by: {ceiling_reason}.",
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
    Rule(
        "look",
        "node",
        lambda f: f["refused"] is not None,
        "{name} was refused",
        "{address}: {refused}.",
        "Run again with it, if you want its help: stored vectors are reused.",
    ),
    # note: only time was lost
    Rule(
        "note",
        "mitigation",
        lambda f: f["kind"] == "companion_cpu_fallback",
        "{model} worked on the CPU",
        "It was placed there because {reason}.",
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
        "node",
        lambda f: f["lost"] > 0,
        "{name} was lost {times}",
        "{reason}. Other nodes did its work.",
        "If nobody took it away, look at Ray's logs there: /tmp/ray/session_latest/logs.",
    ),
    Rule(
        "note",
        "mitigation",
        lambda f: f["kind"] == "answer_lost",
        "Vectors from {device} were lost on their way {times}",
        "{reason}. They were computed again.",
        "If it happens often, give Ray more memory there (ray start --object-store-memory), or look at the network.",
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
        lambda f: f["is_unused"],
        "{name} was idle {idle_words} of the encoding time",
        "{because}. It computed for {busy_words} of {encoding_words}, in mode {modes}.",
        "Use --mode exclusive: each model then has all GPUs in turn.",
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
        "run",
        lambda f: f["starting_share"] >= STARTING and f["starting_s"] >= LEAST_START_S,
        "The start took {starting_words} of the time",
        "{starting} of {seconds}, for finding or downloading models and opening devices.",
        "Run 'ultimate-embedder models pull MODEL' before, where a run has to wait for it.",
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


def find_advice(summary: RunSummary, *, ended: bool) -> list[Advice]:
    """Every rule that applies, the worst first; of one rule at most some, and how many more."""
    facts = find_facts(summary, ended=ended)
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
