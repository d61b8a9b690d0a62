"""`--otel`: events become spans and metrics, and no exporter can fail a run or hold it up."""

from __future__ import annotations

import builtins
import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import UsageError, embed, events
from ultimate_embedder.report.telemetry import sink
from ultimate_embedder.types import MemorySnapshot, VectorSpec

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry import context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.otlp_receiver import Receiver, attributes, receiving
from ultimate_embedder.report.telemetry.names import INSTRUMENTS
from ultimate_embedder.report.telemetry.providers import Providers

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXTS = [{"text": f"text number {number} " * (1 + number % 5)} for number in range(30)]


@pytest.fixture(autouse=True)
def _own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "TRACEPARENT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        yield found


def memory(device: str = "cpu") -> MemorySnapshot:
    return MemorySnapshot(device, 100, 50, 30, 40, 60, 70, 0, 90)


def batch(at: float, index: int) -> events.BatchEncoded:
    return events.BatchEncoded(
        collection="docs",
        timestamp=at,
        model="tiny",
        model_pass=0,
        batch_index=index,
        device="cpu",
        dtype="float32",
        rows=4,
        texts=4,
        planned_rows=8,
        tokens=100,
        padded_tokens=120,
        longest=30,
        bad_rows=0,
        packed=False,
        fp32_rows=0,
        predicted_bytes=0,
        measured_bytes=0,
        wait_seconds=0.25,
        forward_seconds=0.5,
        memory_before=memory(),
        memory=memory(),
    )


def test_a_run_is_a_tree_of_spans_with_sampled_batches_and_exact_metrics() -> None:
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    providers = Providers(tracers, MeterProvider([reader]), context.Context())
    telemetry = sink.Telemetry(providers, pytest.fail)
    lost = {"model": "tiny", "device": "cpu", "before": {"rows": 8}, "after": None}
    for event in (
        events.CollectionStarted(collection="docs", timestamp=100.0, files=1),
        events.ChunksLoaded(
            collection="docs", timestamp=101.0, found=44, loaded=40, rejected=4, distinct_texts=40, seconds=1.0
        ),
        events.PassStarted(
            collection="docs",
            timestamp=102.0,
            model="tiny",
            model_pass=0,
            weight=1.0,
            devices=["cpu"],
            dtype="float32",
            fingerprint="f",
            texts=40,
            stored_texts=0,
        ),
        *(batch(103.0 + index, index) for index in range(10)),
        events.Mitigated(collection="docs", timestamp=109.5, kind="oom_bisect", details=lost),
        events.Warned(timestamp=110.0, message="something"),
        events.PassFinished(
            collection="docs",
            timestamp=113.0,
            model="tiny",
            model_pass=0,
            weight=1.0,
            devices=["cpu"],
            rows=40,
            batch_rows=4,
            dim=8,
            stored_chunks=40,
            truncated=0,
            seconds=11.0,
        ),
        events.VectorsFused(collection="docs", timestamp=113.5, points=40, vectors=(VectorSpec("", 8),)),
        events.CollectionFinished(collection="docs", timestamp=114.0, status="failed", error="disk", seconds=14.0),
    ):
        telemetry(event)
    telemetry.close()
    found = {span.name: span for span in spans.get_finished_spans()}
    batches = [span for span in spans.get_finished_spans() if span.name == "embeddings tiny"]
    assert [(span.attributes or {})["ultimate_embedder.batch.without_span"] for span in batches] == [0, 4]
    assert [(span.end_time or 0) - (span.start_time or 0) for span in batches] == [500_000_000] * 2
    one = found["ultimate_embedder.pass"]
    assert batches[0].parent is not None
    assert batches[0].parent.span_id == one.context.span_id
    (added,) = one.events
    assert added.name == "ultimate_embedder.mitigation"
    told: dict[str, Any] = dict(added.attributes or {})
    assert told == {
        "ultimate_embedder.mitigation.type": "oom_bisect",
        "ultimate_embedder.mitigation.model": "tiny",
        "ultimate_embedder.mitigation.device": "cpu",
        "ultimate_embedder.mitigation.before": "{'rows': 8}",
    }
    assert found["ultimate_embedder.collection"].status.description == "disk"
    values = _values(json.loads(reader.get_metrics_data().to_json()))  # type: ignore[union-attr]
    assert values["gen_ai.client.embeddings.operation.input_tokens"] == (10, 1000)
    assert values["gen_ai.client.embeddings.duration"] == (10, 5.0)
    assert values["ultimate_embedder.texts"] == (1, 40)
    assert values["ultimate_embedder.padded_tokens"] == (1, 1200)
    assert values["ultimate_embedder.chunks"] == (3, 44 + 4 + 40)
    assert values["ultimate_embedder.device.memory.usage"] == (1, 40)
    assert set(values) == {each.name for each in INSTRUMENTS}


def test_a_run_sends_spans_and_metrics_that_a_collector_can_read(
    write_chunks: WriteChunks, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    models = [str(tiny_model("bert"))]
    summary = embed(write_chunks(TEXTS), tmp_path / "out", models=models, exports=["npy"], otel=True, quiet=True)
    assert summary.ok
    assert summary.warnings == []
    spans = {span.name: span for span in receiver.spans}
    assert set(spans) >= {"ultimate_embedder.run", "ultimate_embedder.collection", "ultimate_embedder.pass"}
    assert spans["ultimate_embedder.run"].parent_span_id.hex() == "b7ad6b7169203331"
    assert {span.trace_id.hex() for span in receiver.spans} == {"0af7651916cd43dd8448eb211c80319c"}
    assert spans["ultimate_embedder.pass"].parent_span_id == spans["ultimate_embedder.collection"].span_id
    told = attributes(spans["embeddings tiny-bert"])
    assert (told["gen_ai.operation.name"], told["gen_ai.request.model"]) == ("embeddings", "tiny-bert")
    assert receiver.resources[0]["service.name"] == "ultimate-embedder"
    assert receiver.resources[0]["deployment.environment"] == "test"
    tokens = receiver.metrics["gen_ai.client.embeddings.operation.input_tokens"]
    assert tokens.unit == "{token}"
    (point,) = tokens.histogram.data_points
    assert point.sum == summary.collections[0].passes[0].tokens
    assert list(point.explicit_bounds)[:3] == [1, 4, 16]
    (encoded,) = receiver.metrics["ultimate_embedder.texts"].sum.data_points
    assert encoded.as_int == 30


def test_an_exporter_that_cannot_connect_is_one_warning(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:  # bound and not listening: nobody else gets this port
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setattr(sink, "CLOSE_SECONDS", 0.3)
        summary = embed(
            write_chunks(TEXTS), tmp_path / "out", models=[str(tiny_model("bert"))], exports=[], otel=True, quiet=True
        )
    assert summary.ok
    (warning,) = summary.warnings
    assert "not sent within 0.3 s (Connection refused). Check OTEL_EXPORTER_OTLP_ENDPOINT" in warning
    assert "The run is not affected" in warning
    for thread in [each for each in threading.enumerate() if each.name == "telemetry-late"]:
        thread.join()
    assert capfd.readouterr().err == ""
    assert logging.getLogger("opentelemetry").propagate


def test_an_endpoint_that_never_answers_does_not_hold_up_the_end(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "CLOSE_SECONDS", 0.3)
    with receiving(silent=True) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", silent.url)
        summary = embed(
            write_chunks(TEXTS), tmp_path / "out", models=[str(tiny_model("bert"))], exports=[], otel=True, quiet=True
        )
        assert not silent.release.is_set()  # it has still answered nothing
    assert summary.ok
    (warning,) = summary.warnings
    assert "was not sent within 0.3 s" in warning


def test_a_fault_of_the_library_does_not_fail_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    providers = Providers(TracerProvider(), MeterProvider(), context.Context())
    telemetry = sink.Telemetry(providers, told.append)
    monkeypatch.setattr(telemetry, "_spans", None)
    for _ in range(3):
        telemetry(events.Warned(message="x"))
    telemetry.close()
    (message,) = told
    assert "could not be recorded" in message


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(
    write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = builtins.__import__

    def without(name: str, *arguments: Any, **settings: Any) -> Any:
        if name.endswith("telemetry.providers"):
            raise ModuleNotFoundError("No module named 'opentelemetry'")
        return whole(name, *arguments, **settings)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"Run: pip install 'ultimate-embedder\[otel\]'"):
        embed(write_chunks(TEXTS), tmp_path / "out", otel=True, quiet=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "OTEL_TRACES_EXPORTER=zipkin is none of otlp, console, none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "Set it to http/protobuf"),
    ],
)
def test_a_variable_that_asks_for_something_else_is_refused(
    variable: str, value: str, said: str, write_chunks: WriteChunks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=said):
        embed(write_chunks(TEXTS), tmp_path / "out", otel=True, quiet=True)


def test_every_metric_is_in_the_docs() -> None:
    page = (DOCS / "telemetry.md").read_text("utf-8")
    assert [each.name for each in INSTRUMENTS if f"| `{each.name}` | {each.unit} |" not in page] == []


def _values(data: dict[str, Any]) -> dict[str, Any]:
    """For each metric the number of records (or of points), and the sum."""
    found = {}
    for metric in data["resource_metrics"][0]["scope_metrics"][0]["metrics"]:
        points = metric["data"]["data_points"]
        counted = sum(point.get("count", 1) for point in points)
        found[metric["name"]] = (counted, sum(point.get("sum", point.get("value", 0)) for point in points))
    return found
