"""A worker under pressure: what it does, in the order of the ladder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.tiny_models import tiny_model
from ultimate_embedder import embed
from ultimate_embedder.batching import Batch
from ultimate_embedder.devices import Device, MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.execution.batches import EncodedBatch, StartedBatch
from ultimate_embedder.execution.ladder import Mitigation, RanOn
from ultimate_embedder.execution.placement import move
from ultimate_embedder.execution.worker import Worker
from ultimate_embedder.models import Encoder, TokenizedTexts, load_encoder, resolve_model

MiB = 1 << 20
Reports = list[tuple[str, dict[str, Any]]]
MakeBench = Callable[..., "Bench"]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """Make a bench; afterwards every model leaves its device and nothing may be left."""
    made: list[Bench] = []

    def make(*capacities: int) -> Bench:
        made.append(Bench(*capacities))
        return made[-1]

    yield make
    for each in made:
        for encoder in each.encoders:
            encoder.model.to("cpu")
        each.controls.clear_workspaces()
        assert [each.controls.usage(device)["allocated"] for device in range(len(each.devices))] == [0] * len(
            each.devices
        )


class Bench:
    """A model on simulated devices, and everything its workers report."""

    def __init__(self, *capacities: int) -> None:
        self.devices: list[Device] = open_devices("simulated:" + "+".join(map(str, capacities)), MemoryLimits())
        self.controls: SimulatedControls = simulate(capacities)
        self.reports: Reports = []
        self.encoders: list[Encoder] = []
        self.fp32 = load()
        self.texts = self.fp32.tokenize([f"{number} " + "word " * 20 for number in range(32)])
        self.reference = self.fp32.forward(self.fp32.batch(self.texts, np.arange(32))).numpy()

    def worker(self, device: int = 0, **options: Any) -> Worker:
        return self.worker_of(load(), device, **options)

    def worker_of(self, encoder: Encoder, device: int = 0, **options: Any) -> Worker:
        self.encoders.append(encoder)
        assert move(encoder, self.devices[device])
        encoder.can_pack(self.devices[device])  # found out now, so that a failure that a test injects meets a batch
        return Worker(
            encoder,
            self.devices[device],
            lambda: self.fp32,
            self._report,
            **options,
        )

    def _report(self, mitigation: Mitigation, details: dict[str, Any]) -> None:
        assert details["reason"], mitigation.kind
        self.reports.append((mitigation.kind, details))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.reports]


def load(dtype: str = "float32") -> Encoder:
    return load_encoder(resolve_model(str(tiny_model("bert", hidden=128, layers=6))), dtype, "cpu")


def whole(texts: TokenizedTexts, count: int = 32) -> Batch:
    return Batch(np.arange(count), int(texts.lengths[:count].max()))


def many(rows: int = 10**6) -> Batch:
    return Batch(np.arange(rows), 100)


def check(bench: Bench, worker: Worker, count: int = 32) -> None:
    vectors = worker.encode(bench.texts, whole(bench.texts, count)).vectors
    assert (vectors * bench.reference[:count]).sum(1).min() > 0.99999


def test_oom_bisects_only_the_failing_batch_and_remembers_the_size(make_bench: MakeBench) -> None:
    bench = make_bench(256 * MiB)
    worker = bench.worker()
    rows_before = worker.rows_that_fit(many())
    bench.reports.clear()
    bench.controls.fail_after(0, 40)
    check(bench, worker)
    assert bench.kinds() == ["adaptive_batch_reduce_after_oom", "oom_bisect"]
    (_, reduced), (_, bisected) = bench.reports
    assert reduced["before"]["rows"] > reduced["after"]["rows"]
    assert bisected["rows"] == 2 * bisected["rows_after"]
    assert "ran out of memory" in bisected["reason"]
    assert worker.rows_that_fit(many()) < rows_before
    bench.reports.clear()
    check(bench, worker)
    assert bench.kinds() == []


def test_a_bisected_batch_empties_no_cache(make_bench: MakeBench) -> None:
    bench = make_bench(256 * MiB, 256 * MiB)
    worker = bench.worker()
    before = bench.controls.empty_cache_calls()
    bench.controls.fail_after(0, 40)
    check(bench, worker)
    assert bench.kinds()[-1] == "oom_bisect"
    assert bench.controls.empty_cache_calls() == before


def test_companions_that_make_room_empty_no_cache(make_bench: MakeBench) -> None:
    bench = make_bench(64 * MiB, 64 * MiB)
    companion = bench.worker(place=1, refuges=[bench.devices[1]])
    primary = bench.worker(companions=[companion])
    before = bench.controls.empty_cache_calls()
    for _ in range(2):
        bench.controls.fail_after(0, 40)
        check(bench, primary)
        check(bench, companion)
        companion.release_weights()
    assert [kind for kind in bench.kinds() if kind.startswith("oom")] == ["oom_pause_companions", "oom_move_companions"]
    assert bench.controls.empty_cache_calls() == before


def test_a_single_text_is_retried_before_anything_costly(make_bench: MakeBench) -> None:
    bench = make_bench(256 * MiB)
    worker = bench.worker()
    bench.controls.fail_after(0, 40)
    check(bench, worker, count=1)
    assert bench.kinds()[-1] == "oom_retry"


def test_free_memory_below_the_margin_shrinks_the_next_batch_and_its_return_restores_it(make_bench: MakeBench) -> None:
    bench = make_bench(256 * MiB)
    worker = bench.worker()
    full = worker.rows_that_fit(many(1))
    batch = many(full)
    assert worker.rows_that_fit(batch) >= full
    assert bench.kinds() == []  # nothing changed a batch
    bench.controls.set_external(0, 150 * MiB)
    crowded = worker.rows_that_fit(batch)
    assert crowded < full / 2
    assert bench.kinds() == ["adaptive_batch_reduce"]
    details = bench.reports[0][1]
    assert (details["planned_rows"], details["rows_before"], details["rows"]) == (full, full, crowded)
    assert "others hold" in details["reason"]
    assert worker.rows_that_fit(many(3), planned_rows=full) >= 3  # a rest that fits is no recovery
    assert bench.kinds() == ["adaptive_batch_reduce"]
    bench.controls.set_external(0, 0)
    steps = [worker.rows_that_fit(many(int(full * 0.95))) for _ in range(12)]
    assert steps == sorted(steps)
    assert bench.kinds() == ["adaptive_batch_reduce", "adaptive_batch_grow"]


def test_companions_wait_then_move_to_the_next_gpu_with_room(make_bench: MakeBench) -> None:
    bench = make_bench(64 * MiB, 64 * MiB)
    companion = bench.worker(place=1, refuges=[bench.devices[1]])
    primary = bench.worker(companions=[companion])
    bench.controls.fail_after(0, 40)
    check(bench, primary)
    assert bench.kinds()[-2:] == ["companion_paused", "oom_pause_companions"]
    check(bench, companion)
    assert bench.kinds()[-1] == "weights_back"
    bench.controls.fail_after(0, 40)
    check(bench, primary)
    assert bench.kinds()[-2:] == ["companion_gpu_routed", "oom_move_companions"]
    assert companion.device is bench.devices[1]
    check(bench, companion)


def test_companions_go_to_the_cpu_when_no_gpu_has_room(make_bench: MakeBench) -> None:
    bench = make_bench(64 * MiB, 4 * MiB)
    companion = bench.worker(place=1, refuges=[bench.devices[1]])
    primary = bench.worker(companions=[companion])
    for _ in range(2):
        bench.controls.fail_after(0, 40)
        check(bench, primary)
    assert bench.kinds()[-2:] == ["companion_cpu_fallback", "oom_move_companions"]
    assert companion.device.name == "cpu"
    check(bench, companion)


def test_vectors_that_are_not_finite_are_computed_again_in_fp32(
    monkeypatch: pytest.MonkeyPatch, make_bench: MakeBench
) -> None:
    bench = make_bench(256 * MiB)
    path = tiny_model("bert", hidden=128, layers=6)
    half = load_encoder(resolve_model(str(path)), "float16", "cpu")
    forward = half.forward

    def overflowing(batch: Any) -> Any:
        vectors = forward(batch).clone()
        vectors[3] = float("inf")
        vectors[7] *= 2
        return vectors

    monkeypatch.setattr(half, "forward", overflowing)
    worker = bench.worker_of(half)
    encoded = worker.encode(bench.texts, whole(bench.texts))
    assert encoded.fp32_rows == 2
    assert not encoded.bad.any()
    assert (encoded.vectors * bench.reference).sum(1).min() > 0.999
    kind, details = bench.reports[-1]
    assert (kind, details["rows"], details["still_unusable"]) == ("fp32_rerun", 2, 0)


def test_the_dtype_follows_the_capability() -> None:
    (device,) = open_devices("simulated:1GiB", MemoryLimits())
    assert device.dtype("auto") == "float16"  # capability 7.5 has no bf16
    assert device.dtype("fp32") == "float32"
    simulate([1 << 30]).set_capability(0, (8, 0))
    assert device.dtype("auto") == "bfloat16"


def test_the_probe_tells_what_the_next_allocation_can_use() -> None:
    import torch

    controls = simulate([100 * MiB])
    (device,) = open_devices(f"simulated:{100 * MiB}", MemoryLimits())
    held = torch.empty(3 * MiB, dtype=torch.uint8, device="simulated:0")
    controls.set_external(0, 10 * MiB)
    now = device.snapshot()
    assert (now.total_bytes, now.allocated_bytes, now.reserved_bytes) == (100 * MiB, 3 * MiB, 20 * MiB)
    assert (now.external_bytes, now.free_bytes) == (10 * MiB, 70 * MiB)
    assert now.ceiling_bytes == 92 * MiB
    assert now.usable_bytes == (92 - 10 - 3) * MiB
    del held


def test_a_batch_under_way_keeps_its_device_and_precision_when_its_worker_moves(make_bench: MakeBench) -> None:
    bench = make_bench(64 * MiB)
    encoder = load("float16")
    for weight in encoder.model.parameters():
        weight.data.fill_(float("nan"))
    worker = bench.worker_of(encoder)
    started = worker.start(bench.texts, whole(bench.texts))
    assert worker.move_away("no room")
    encoded = worker.finish(started)
    assert worker.device.name == "cpu"
    assert encoded.started.ran_on == (RanOn("simulated:0", "float16", 32),)
    assert (encoded.fp32_rows, int(encoded.bad.sum())) == (32, 0)
    assert (encoded.vectors * bench.reference).sum(1).min() > 0.99999


def test_a_batch_is_sent_and_fetched_beside_the_stream_that_computes(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(64 * MiB)
    worker, device = bench.worker(), bench.devices[0]
    streams: list[tuple[str, int]] = []
    copy = torch.Tensor.copy_
    to = torch.Tensor.to

    def note(what: str, tensor: torch.Tensor) -> None:
        assert tensor.is_pinned()
        streams.append((what, torch.accelerator.current_stream(device.torch_device).stream_id))

    def noted_copy(into: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        if options.get("non_blocking"):
            note("fetch", into)
        return copy(into, *rest, **options)

    def noted_to(tensor: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        if options.get("non_blocking"):
            note("send", tensor)
        return to(tensor, *rest, **options)

    monkeypatch.setattr(torch.Tensor, "copy_", noted_copy)
    monkeypatch.setattr(torch.Tensor, "to", noted_to)
    check(bench, worker)
    sending, fetching = ({stream for what, stream in streams if what == kind} for kind in ("send", "fetch"))
    computing = torch.accelerator.current_stream(device.torch_device).stream_id
    assert len(sending) == len(fetching) == 1
    assert len({*sending, *fetching, computing}) == 3


def test_the_first_batch_is_measured_without_what_matrix_products_keep(make_bench: MakeBench) -> None:
    bench = make_bench(1024 * MiB)
    worker = bench.worker()
    bench.controls.clear_workspaces()  # those of the trial of packing
    with worker.device.computing():
        started = worker.encode(bench.texts, whole(bench.texts)).started
    assert started.measured_bytes == pytest.approx(started.predicted_bytes, rel=0.1)


def test_the_next_batch_is_given_to_the_device_before_the_one_before_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chunks" / "c").mkdir(parents=True)
    texts = [f"{number} " + "word " * (5 + number % 40) for number in range(600)]
    (tmp_path / "chunks" / "c" / "all_chunks.json").write_text(json.dumps(texts))
    steps: list[tuple[str, int]] = []
    start, finish = Worker.start, Worker.finish

    def noted_start(self: Worker, tokenized: TokenizedTexts, batch: Batch, planned_rows: int) -> StartedBatch:
        started = start(self, tokenized, batch, planned_rows)
        steps.append(("start", id(started.rows)))
        return started

    def noted_finish(self: Worker, started: StartedBatch) -> EncodedBatch:
        steps.append(("finish", id(started.rows)))
        return finish(self, started)

    monkeypatch.setattr(Worker, "start", noted_start)
    monkeypatch.setattr(Worker, "finish", noted_finish)
    model = str(tiny_model("bert", hidden=128, layers=6))
    options: dict[str, Any] = {
        "models": model,
        "devices": "simulated:64MiB",
        "precision": "fp32",
        "exports": "npy",
        "quiet": True,
    }
    summary = embed(tmp_path / "chunks", tmp_path / "out", **options)
    assert summary.collections[0].chunks.embedded == 600
    kinds = [kind for kind, _ in steps]
    assert len(kinds) > 6
    assert kinds == ["start", *["start", "finish"] * (len(kinds) // 2 - 1), "finish"]
    order = {kind: [batch for each, batch in steps if each == kind] for kind in ("start", "finish")}
    assert order["start"] == order["finish"]


def test_memory_is_read_once_before_a_batch_where_no_other_model_uses_the_device(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(256 * MiB)
    reads: list[int] = []
    read = torch.get_device_module("simulated").mem_get_info

    def counted(index: int) -> tuple[int, int]:
        reads.append(index)
        return read(index)  # type: ignore[no-any-return]

    monkeypatch.setattr(torch.get_device_module("simulated"), "mem_get_info", counted)
    batch = Batch(np.arange(8), int(bench.texts.lengths[:8].max()))
    for alone, expected in ((True, 2), (False, 3)):  # before and after
        worker = bench.worker(alone=alone)
        reads.clear()
        assert worker.rows_that_fit(batch) >= 8
        worker.encode(bench.texts, batch)
        assert len(reads) == expected
