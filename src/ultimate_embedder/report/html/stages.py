"""Where the time went: of the run as a whole, and of each collection, all on one scale."""

from __future__ import annotations

from collections.abc import Mapping

from ultimate_embedder.report.html.words import number, text
from ultimate_embedder.summary import CollectionSummary, RunSummary

MOST_COLLECTIONS = 100
LEAST_S = 0.05  # what is shorter is not named
# stages, and what encoding consists of, with words for them
STAGES: dict[str, str] = {
    "start": "start of the run",
    "load": "reading chunks",
    "split": "splitting long chunks",
    "model": "loading models",
    "moving": "moving weights",
    "forward": "forward",
    "wait": "devices waiting",
    "encoding": "rest of encoding",
    "check": "checking precision",
    "export": "exports",
    "other": "other",
}
ENCODE = {"moving": "moving", "forward": "forward", "wait": "wait", "other": "encoding"}
Parts = dict[str, tuple[float, str]]
"""Seconds of each stage, and their place in the summary."""


def draw_stages(summary: RunSummary) -> str:
    """A bar for the run, without its collections, and one for each collection."""
    bars = [("start and end of the run", _of_run(summary))]
    bars += [
        (each.collection, _of_collection(each, index))
        for index, each in enumerate(summary.collections[:MOST_COLLECTIONS])
    ]
    bars = [(name, parts) for name, parts in bars if parts]
    longest = max((sum(seconds for seconds, _ in parts.values()) for _, parts in bars), default=0.0)
    if not longest:
        return ""
    used = [stage for stage in STAGES if any(stage in parts for _, parts in bars)]
    legend = "".join(f'<span><b class="s-{stage}"></b>{STAGES[stage]}</span>' for stage in used)
    drawn = "".join(_bar(name, parts, longest) for name, parts in bars)
    more = len(summary.collections) - MOST_COLLECTIONS
    rest = f"<p>And {more:,} more; summary.json lists all.</p>" if more > 0 else ""
    return f'<p class="legend">{legend}</p>{drawn}{rest}'


def _of_run(summary: RunSummary) -> Parts:
    found = summary.seconds_by_stage
    parts = {stage: (found.get(stage, 0.0), f"seconds_by_stage.{stage}") for stage in ("start", "other")}
    return {stage: part for stage, part in parts.items() if part[0] > 0}


def _of_collection(each: CollectionSummary, index: int) -> Parts:
    place = f"collections.{index}"
    found: Parts = {}
    for stage, seconds in each.seconds_by_stage.items():
        if stage != "encode":
            found[stage] = (seconds, f"{place}.seconds_by_stage.{stage}")
        elif each.encode_seconds:
            for part, taken in each.encode_seconds.items():
                found[ENCODE.get(part, "encoding")] = (taken, f"{place}.encode_seconds.{part}")
        else:
            found["encoding"] = (seconds, f"{place}.seconds_by_stage.encode")
    return {stage: found[stage] for stage in STAGES if stage in found and found[stage][0] > 0}


def _bar(name: str, parts: Mapping[str, tuple[float, str]], longest: float) -> str:
    words = ", ".join(
        f"{STAGES[stage]} {number(seconds, key, 1, ' s')}"
        for stage, (seconds, key) in parts.items()
        if seconds >= LEAST_S
    )
    bars = "".join(
        f'<span class="s-{stage}" style="width:{seconds / longest:.2%}" title="{STAGES[stage]}: {seconds:.2f} s">'
        "</span>"
        for stage, (seconds, _) in parts.items()
    )
    return f'<h3>{text(name)} <small>{words}</small></h3><div class="stack">{bars}</div>'
