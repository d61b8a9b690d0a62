"""The state of a run in Prometheus' text format, read back by the grammar of the format."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.report.live.test_state import GB, START, batch, started
from ultimate_embedder import events
from ultimate_embedder.report.live import RunState
from ultimate_embedder.report.metrics import CONTENT_TYPE, prometheus_text

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL.pattern})(?:,{LABEL.pattern})*)\}})? (NaN|[+-]Inf|[0-9.e+-]+)")
UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples; asserts that HELP and TYPE stand once, before the samples of their metric, which are together."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    seen: list[str] = []
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            seen.append(line.split(" ", 3)[2])
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == seen[-1]
            assert kind == ("counter" if name.endswith("_total") else "gauge")
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == seen[-1]
        labels = [(name, re.sub(r"\\.", lambda each: UNESCAPED[each[0]], value)) for name, value in LABEL.findall(line)]
        key = (match[1], frozenset(labels))
        assert key not in found
        found[key] = float(match[match.lastindex or 0])
    assert len(seen) == len(set(seen))
    return found


def state(*more: events.Event) -> RunState:
    found = RunState()
    for event in (
        events.CollectionStarted(collection="docs", timestamp=START, files=1),
        started(),
        batch(1.0),
        batch(2.0),
        *more,
    ):
        found(event)
    return found


def test_values_are_those_of_the_view() -> None:
    view = state().view()
    found = parsed(prometheus_text(view))
    of_pass = frozenset({("collection", "docs"), ("model", "minilm"), ("pass", "0")})
    assert found["ultimate_embedder_pass_texts_done", of_pass] == view.passes[0].done == 200
    assert found["ultimate_embedder_pass_tokens_total", of_pass] == 10_000
    assert found["ultimate_embedder_pass_progress_ratio", of_pass] == view.passes[0].share
    of_device = frozenset({("device", "cuda:0")})
    assert found["ultimate_embedder_device_memory_ceiling_bytes", of_device] == 12 * GB
    assert found["ultimate_embedder_device_lost", of_device] == 0
    assert found["ultimate_embedder_run_status", frozenset({("status", "running")})] == 1
    assert found["ultimate_embedder_run_status", frozenset({("status", "failed")})] == 0
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")


def test_names_are_escaped_and_mitigations_of_one_kind_are_one_sample() -> None:
    hostile = 'quo"te \\ back\nline {a="b"} 1'
    details = [{"model": "minilm", "device": device, "reason": "x"} for device in ("cuda:0", "cuda:1", "cuda:0")]
    found = state(
        events.CollectionStarted(collection=hostile, timestamp=START, files=1),
        *(events.Mitigated(collection="docs", timestamp=START, kind="oom_bisect", details=each) for each in details),
        events.Warned(timestamp=START, message=hostile),
    )
    view = found.view()
    rows = tuple(dataclasses.replace(row, name=hostile) for row in view.collections[1:])  # not printable even
    samples = parsed(prometheus_text(dataclasses.replace(view, collections=rows)))
    assert ("ultimate_embedder_collection_chunks", frozenset({("collection", hostile)})) in samples
    assert samples["ultimate_embedder_mitigations_total", frozenset({("kind", "oom_bisect")})] == 3
    assert samples["ultimate_embedder_warnings_total", frozenset()] == 1


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "NaN"), (float("inf"), "+Inf"), (0.1, "0.1"), (2.0, "2")])
def test_any_number_can_be_written(value: float, said: str) -> None:
    view = dataclasses.replace(state().view(), seconds=value)
    assert f"\nultimate_embedder_run_duration_seconds {said}\n" in prometheus_text(view)


def test_a_run_of_which_nothing_is_known_has_no_empty_family() -> None:
    text = prometheus_text(RunState().view())
    assert "start_time" not in text
    assert "pass_" not in text
    parsed(text)
