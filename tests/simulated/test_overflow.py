"""Models whose numbers overflow in fp16: a few rows are computed again on the host, many change the pass to fp32."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.slow import slow
from tests.support.tiny_models import overflowing_model, tiny_model
from ultimate_embedder import embed, open_output
from ultimate_embedder.cli import main
from ultimate_embedder.compat import KaggleExportConfig, UltimateKaggleEmbedderV4
from ultimate_embedder.config import HubAccess
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.execution import host
from ultimate_embedder.execution.cluster.node import Node
from ultimate_embedder.execution.cluster.units import PassOrder, Unit
from ultimate_embedder.find import open_query_encoder
from ultimate_embedder.models import Encoder, load_encoder, resolve_model
from ultimate_embedder.options import make_config
from ultimate_embedder.planning import plan_passes
from ultimate_embedder.status import output_status
from ultimate_embedder.summary import CollectionSummary
from ultimate_embedder.verify import verify_output

MiB = 1 << 20
EVERY = "</s>"  # in every text
TEXTS = 700
Run = Callable[..., CollectionSummary]


@pytest.fixture(autouse=True)
def controls() -> Iterator[SimulatedControls]:
    """Simulated devices; afterwards nothing may be left on them."""
    controls = simulate([64 * MiB, 64 * MiB])
    yield controls
    count = torch.get_device_module("simulated").device_count()
    assert [controls.usage(device)["allocated"] for device in range(count)] == [0] * count


def write_texts(folder: Path, overflowing: int, of: int = 100, count: int = TEXTS) -> Path:
    """Texts, the first `overflowing` of which overflow, in every hundred."""
    texts = [f"{'~' if number % of < overflowing else ''}{number} " + "word " * 8 for number in range(count)]
    (folder / "chunks" / "c").mkdir(parents=True, exist_ok=True)
    (folder / "chunks" / "c" / "t_chunks.json").write_text(json.dumps(texts))
    return folder / "chunks"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Embed `c` and give its summary; `overflowing` of every hundred texts overflow."""

    def embed_it(output: str = "out", *, overflowing: int = 10, of: int = 100, **options: Any) -> CollectionSummary:
        defaults: dict[str, Any] = {"devices": "simulated:2x64MiB", "exports": "npy,parquet", "quiet": True}
        options.setdefault("models", str(overflowing_model()))
        return embed(write_texts(tmp_path, overflowing, of), tmp_path / output, **defaults | options).collections[0]

    return embed_it


def kinds(collection: CollectionSummary) -> list[str]:
    return [each.type for each in collection.mitigations]


def vectors(folder: Path) -> np.ndarray:
    return np.asarray(np.load(folder / "c" / "embeddings.npy"))


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]


def stores(folder: Path) -> dict[str, str]:
    """Fingerprint and precision of each pass that has vectors."""
    found = (folder / "c" / "store").glob("*/pass.json")
    return {path.parent.name: json.loads(path.read_text())["identity"]["dtype"] for path in found}


def test_the_model_overflows_for_texts_with_its_token_and_for_no_others() -> None:
    model = resolve_model(str(overflowing_model()))
    half, full = (load_encoder(model, dtype, "cpu") for dtype in ("float16", "float32"))
    texts = full.tokenize(["plain words", "words and ~ too"])
    ours, right = (each.forward(each.batch(texts, np.arange(2))).numpy() for each in (half, full))
    assert np.isfinite(right).all()
    assert (ours[0] * right[0]).sum() > 0.999
    assert not np.isfinite(ours[1]).any()


def test_a_few_rows_are_computed_again_on_the_host_in_small_batches_one_at_a_time(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ultimate_embedder.execution.host.CPU_BUDGET_TOKENS", 64)
    alone = threading.Lock()
    sizes: list[int] = []
    forward = Encoder.forward

    def noted(self: Encoder, batch: Any) -> Any:
        if self.device.type == "cpu":
            assert alone.acquire(blocking=False)
            assert host._computing.locked()
            sizes.append(batch.padded_tokens)
            vectors = forward(self, batch)
            alone.release()
            return vectors
        return forward(self, batch)

    monkeypatch.setattr(Encoder, "forward", noted)
    collection = run(overflowing=1, of=175, batch_rows=32)
    assert "pass_in_fp32" not in kinds(collection)
    assert collection.passes[0].dtype == "float16"
    assert collection.passes[0].fp32_rows == 4
    assert max(sizes) <= 64
    assert np.isfinite(vectors(tmp_path / "out")).all()


@pytest.mark.parametrize("devices", ["simulated:64MiB", "simulated:2x64MiB"])
@pytest.mark.parametrize("token", [EVERY, "~"])
def test_a_pass_that_overflows_is_computed_in_fp32_and_stays_so(
    run: Run, tmp_path: Path, devices: str, token: str
) -> None:
    model = str(overflowing_model(token))
    collection = run(models=model, devices=devices)
    reference = run("fp32", models=model, devices=devices, precision="fp32")
    assert collection.status == "completed"
    assert kinds(collection).count("pass_in_fp32") == 1
    (message,) = [warning for warning in collection.warnings if "--precision fp32" in warning]
    assert "of the first" in message
    (only,) = collection.passes
    assert (only.dtype, list(only.tokens_by_dtype)) == ("float32", ["float32"])
    assert only.fingerprint == reference.passes[0].fingerprint
    assert (only.encoded_texts, only.stored_texts) == (TEXTS, 0)
    assert stores(tmp_path / "out") == {only.fingerprint: "float32"}
    assert np.array_equal(vectors(tmp_path / "out"), vectors(tmp_path / "fp32"))
    batches = [(each["model_pass"], each["batch_index"]) for each in events(tmp_path / "out", "BatchEncoded")]
    assert len(set(batches)) == len(batches)

    again = run(models=model, devices=devices)
    assert (again.passes[0].dtype, again.passes[0].stored_texts) == ("float32", TEXTS)
    assert not events(tmp_path / "out", "BatchEncoded")
    assert not events(tmp_path / "out", "ModelLoaded")
    assert kinds(again) == []


def test_what_is_known_of_an_output_agrees_with_what_was_computed(run: Run, tmp_path: Path) -> None:
    collection = run(overflowing=10)
    out = tmp_path / "out"
    (status,) = output_status(out)
    assert (status.dtype, status.rows, status.missing, status.next) == ("float32", TEXTS, 0, "nothing")
    verified = verify_output(out, 16, HubAccess(offline=True))
    assert (verified.damaged, verified.unchecked, verified.vectors) == ([], [], 16)
    query = open_query_encoder(open_output(out), "c", HubAccess(offline=True))
    texts = json.loads((tmp_path / "chunks" / "c" / "t_chunks.json").read_text())
    (ours,) = query.encode_documents(texts[:3]).values()
    assert (ours * vectors(out)[:3]).sum(1).min() > 0.99999
    assert collection.passes[0].fingerprint in stores(out)


def test_new_texts_begin_in_fp32_and_fresh_begins_in_fp16(run: Run, tmp_path: Path) -> None:
    run(overflowing=10)
    more = run(overflowing=11)
    assert (more.passes[0].dtype, more.passes[0].encoded_texts) == ("float32", 7)
    assert kinds(more) == []
    fresh = run(overflowing=11, fresh=True)
    assert kinds(fresh).count("pass_in_fp32") == 1
    assert fresh.passes[0].encoded_texts == TEXTS
    fresh = run(overflowing=0, fresh=True)
    assert (fresh.passes[0].dtype, kinds(fresh)) == ("float16", [])
    assert run(overflowing=0).passes[0].dtype == "float16"


def test_a_damaged_note_counts_for_nothing(run: Run, tmp_path: Path) -> None:
    run(overflowing=10)
    (note,) = (tmp_path / "out" / "c" / "store").glob("*/overflow.json")
    note.write_text(note.read_text().replace('"texts": ', '"texts": 1'))
    again = run(overflowing=10)
    assert kinds(again).count("pass_in_fp32") == 1
    assert (again.passes[0].dtype, again.passes[0].stored_texts) == ("float32", TEXTS)
    assert f"{note} is damaged (its checksum does not match); fp16 is tried again" in again.warnings


def test_an_output_that_is_resumed_from_another_knows_too(run: Run, tmp_path: Path) -> None:
    run(overflowing=10)
    resumed = run("other", overflowing=10, resume_from=str(tmp_path / "out"))
    assert (resumed.passes[0].dtype, resumed.passes[0].stored_texts, kinds(resumed)) == ("float32", TEXTS, [])
    assert kinds(run("other", overflowing=11)) == []


@pytest.mark.parametrize("mode", ["exclusive", slow("sequential"), slow("simultaneous")])
def test_only_the_model_that_overflows_changes(run: Run, tmp_path: Path, mode: str) -> None:
    models = f"{tiny_model('bert')},{overflowing_model()}"
    options: dict[str, Any] = {"models": models, "mode": mode, "fusion": "weighted_average"}
    collection = run(**options)
    assert collection.status == "completed"
    assert [each.dtype for each in collection.passes] == ["float16", "float32"]
    assert [each.encoded_texts for each in collection.passes] == [TEXTS, TEXTS]
    assert kinds(collection).count("pass_in_fp32") == 1
    assert len(events(tmp_path / "out", "PassFinished")) == 2
    assert sorted(stores(tmp_path / "out").values()) == ["float16", "float32"]
    reference = run("fp32", precision="fp32", **options)
    assert reference.status == "completed"
    assert (vectors(tmp_path / "out") * vectors(tmp_path / "fp32")).sum(1).min() > 0.999
    again = run(**options)
    assert not events(tmp_path / "out", "BatchEncoded")
    assert [each.dtype for each in again.passes] == ["float16", "float32"]


def test_a_run_that_is_stopped_after_the_change_goes_on_in_fp32(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(overflowing=10, deadline=0)  # nothing is done
    forward, calls = Encoder.forward, [0]

    def failing(self: Encoder, batch: Any) -> Any:
        if self.dtype == "float32" and self.device.type != "cpu":
            calls[0] += 1
            if calls[0] > 4:
                raise RuntimeError("killed")
        return forward(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "forward", failing)
        failed = run(overflowing=10, batch_rows=32)
    assert failed.status == "failed"
    assert set(stores(tmp_path / "out").values()) == {"float32"}
    again = run(overflowing=10)
    assert (again.status, again.passes[0].dtype, kinds(again)) == ("completed", "float32", [])
    assert 0 < again.passes[0].stored_texts < TEXTS
    run("fp32", overflowing=10, precision="fp32")
    assert (vectors(tmp_path / "out") * vectors(tmp_path / "fp32")).sum(1).min() > 0.99999


def test_a_pass_in_fp16_that_meets_texts_that_overflow_when_it_goes_on_begins_again(run: Run, tmp_path: Path) -> None:
    write = write_texts(tmp_path, overflowing=0, count=120)
    options: dict[str, Any] = {"devices": "simulated:2x64MiB", "exports": "npy", "quiet": True}
    embed(write, tmp_path / "out", models=str(overflowing_model()), **options)
    assert set(stores(tmp_path / "out").values()) == {"float16"}
    collection = run(overflowing=10)
    assert kinds(collection).count("pass_in_fp32") == 1
    assert set(stores(tmp_path / "out").values()) == {"float32"}
    assert (collection.passes[0].encoded_texts, collection.passes[0].stored_texts) == (TEXTS, 0)


@pytest.mark.slow
def test_a_card_without_room_for_the_weights_in_fp32_streams_them(run: Run, tmp_path: Path) -> None:
    model = str(overflowing_model(hidden=256, layers=8))  # 10 MB in fp16
    collection = run(models=model, devices="simulated:18MiB", batch_rows=64)
    assert collection.status == "completed"
    assert {"pass_in_fp32", "oom_stream"} <= set(kinds(collection))
    assert collection.passes[0].tokens_by_device.keys() == {"simulated:0"}


def test_a_kept_model_in_fp16_is_not_taken_for_the_one_in_fp32(run: Run, tmp_path: Path) -> None:
    collection = run(overflowing=10, warm_cache=True)
    assert collection.passes[0].tokens_by_dtype.keys() == {"float32"}
    assert not [warning for warning in collection.warnings if "left on the device" in warning]


def test_the_v4_class_reads_the_vectors_that_were_computed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "simulated:2x64MiB")
    model, exports = str(overflowing_model()), KaggleExportConfig(working_dir=str(tmp_path / "v4"))
    made = UltimateKaggleEmbedderV4(model, export_config=exports)
    made.load_chunks_from_processing(write_texts(tmp_path, overflowing=10))
    made.generate_embeddings_kaggle_optimized()
    run("fp32", precision="fp32", devices="simulated:2x64MiB")
    (ours,) = made.embeddings_by_model.values()
    assert (ours * vectors(tmp_path / "fp32")).sum(1).min() > 0.99999


def test_the_terminal_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chunks = write_texts(tmp_path, overflowing=10)
    options = ["--models", str(overflowing_model()), "--devices", "simulated:64MiB", "--export", "npy"]
    assert main(["embed", str(chunks), "--output", str(tmp_path / "out"), *options]) == 0
    assert "With --precision fp32 a run begins so" in capsys.readouterr().err


def test_a_node_of_a_cluster_says_that_fp16_is_too_narrow_and_gives_no_vectors(tmp_path: Path) -> None:
    texts = [f"~{number} word" for number in range(300)]
    (tmp_path / "chunks").mkdir()
    options: dict[str, Any] = {"models": str(overflowing_model()), "devices": "simulated:2x64MiB", "offline": True}
    config = make_config(tmp_path / "chunks", tmp_path / "out", **options)
    model = resolve_model(config.models[0].name, config.hub)
    (plan,) = plan_passes(config, [(config.models[0], model)], "float16", on_cpu=False)
    node = Node(config, cores=1)
    node.begin(PassOrder(plan, str(model.path), "c", texts=len(texts), stored=0))
    keys = np.arange(2 * len(texts), dtype=np.uint64).reshape(-1, 2)
    result = node.encode(Unit("u", 0, keys, tuple(texts)))
    node.finish()
    node._session.end_run()  # its process would end, and the weights that it keeps warm with it
    assert result.too_narrow is not None
    assert result.too_narrow[1] > 0
    assert result.texts < len(texts)
