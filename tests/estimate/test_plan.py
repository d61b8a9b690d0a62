"""A plan against the run that follows it: on the CPU, with tiny models and real chunks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.tiny_models import tiny_model
from ultimate_embedder import Plan, RunSummary, UsageError, embed, plan
from ultimate_embedder.config import HISTORY_VARIABLE
from ultimate_embedder.errors import MissingModelError, UnknownModelError
from ultimate_embedder.estimate.verdict import mode_notes
from ultimate_embedder.planned import PlannedCollection, PlannedMode, PlannedPass, PlannedSeconds

SENTENCE = "memory of a device is measured before and after every batch , and the next one is as large as it may be"
WORDS = SENTENCE.split()
TEXTS = [" ".join(WORDS[(n + k) % len(WORDS)] for k in range(n % 40 + 1)) + f" {n}" for n in range(80)]
LONG = SENTENCE * 12
REMOVED = 3


def bert() -> str:
    return str(tiny_model("bert", hidden=32, layers=2))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def only(made: Plan) -> tuple[PlannedCollection, PlannedPass]:
    (collection,) = made.collections
    (one,) = collection.passes
    return collection, one


def figures(summary: RunSummary) -> dict[str, tuple[float, float]]:
    assert summary.plan is not None
    return {each.what: (each.planned, each.actual) for each in summary.plan.figures}


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    return write_chunks([*TEXTS, LONG, TEXTS[0], "   "])


def run(chunks: Path, output: Path, **options: Any) -> RunSummary:
    return embed(
        chunks, output, **{"models": [bert()], "devices": "cpu", "exports": "npy,parquet", "quiet": True, **options}
    )


def test_chunks_tokens_and_sizes_are_those_of_the_run(chunks: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    made = plan(chunks, output, models=[bert()], devices="cpu", exports="npy,parquet")
    assert made.fits, made.problems
    assert list(tree(output)) == ["plan.json"]
    collection, one = only(made)
    assert (collection.found, collection.rejected, collection.points) == (83, 1, 82)
    assert (one.texts, one.new_texts, one.stored_texts, one.exact) == (81, 81, 0, True)
    summary = run(chunks, output)
    done = summary.collections[0].passes[0]
    assert one.fingerprint == done.fingerprint
    assert (one.tokens, one.padded_tokens, one.batches) == (done.tokens, done.padded_tokens, done.batches)
    assert (one.truncated, one.tokens_lost, one.longest_tokens) == (1, done.tokens_lost, done.longest_tokens)
    assert sum(each.texts for each in one.lengths) == one.new_texts
    assert summary.plan is not None
    assert (summary.plan.same_work, summary.plan.same_devices, summary.plan.why) == (True, True, "")
    found = figures(summary)
    for what in ("chunks", "points", "new texts", "tokens", "tokens with padding", "tokens lost"):
        assert found[what][0] == found[what][1] > 0, what
    for export in ("npy export on disk", "parquet export on disk"):
        assert found[export][0] == pytest.approx(found[export][1], rel=0.25)
    assert {"pass", "run"} <= found.keys()
    assert done.planned_tokens == done.tokens
    again = run(chunks, output)
    assert again.plan is not None
    assert not again.plan.same_work
    assert again.plan.why.endswith("0 texts had a vector of tiny-bert when it was made, and 81 when the run began")


def test_what_is_new_what_is_stored_and_what_is_gone(write_chunks: WriteChunks, tmp_path: Path) -> None:
    output, chunks = tmp_path / "out", write_chunks(TEXTS)
    run(chunks, output)
    before = tree(output)
    write_chunks([*TEXTS[REMOVED:], "one more", "and another"])
    collection, one = only(plan(chunks, output, models=[bert()], devices="cpu", gpus="cpu"))
    assert (one.new_texts, one.stored_texts) == (2, len(TEXTS) - REMOVED)
    assert collection.removed_texts == REMOVED
    assert collection.removed_points is not None
    assert tree(output).keys() - before.keys() == {"plan.json"}
    assert {name: tree(output)[name] for name in before} == before
    _, fresh = only(plan(chunks, output, models=[bert()], devices="cpu", fresh=True))
    assert fresh.new_texts == len(TEXTS) - REMOVED + 2
    elsewhere = plan(chunks, tmp_path / "new", models=[bert()], devices="cpu", resume_from=output)
    assert only(elsewhere)[1].new_texts == 2
    skipped = plan(chunks, output, models=[bert()], exports="npy", skip_existing=True)
    assert skipped.collections[0].skipped
    plan(chunks, output, models=[bert()], devices="cpu")
    summary = run(write_chunks(TEXTS), output)
    assert summary.plan is not None
    assert "its chunks have changed since" in summary.plan.why


@pytest.mark.parametrize("overlong", ["pool", "split"])
def test_long_texts_are_cut_as_the_run_cuts_them(overlong: str, chunks: Path, tmp_path: Path) -> None:
    made = plan(chunks, tmp_path / "out", models=[bert()], devices="cpu", overlong=overlong, max_tokens=64)
    summary = run(chunks, tmp_path / "out", overlong=overlong, max_tokens=64)
    assert (made.collections[0].points, only(made)[1].truncated) == (summary.collections[0].chunks.embedded, 0)
    found = figures(summary)
    for what in ("points", "tokens", "tokens with padding"):
        assert found[what][0] == found[what][1], what


def test_options_that_change_the_work_apply(chunks: Path, tmp_path: Path) -> None:
    made = plan(chunks, tmp_path / "out", models=[bert()], max_tokens=16, devices="cpu", exports="none", batch_rows=2)
    collection, one = only(made)
    assert one.truncated > 40
    assert one.lost_share > 0.5
    assert (one.largest_batch_rows, collection.export_bytes) == (2, {})
    with pytest.raises(UsageError, match=r"plan\(\) has no option 'max_token'.*max_tokens"):
        plan(chunks, max_token=16)
    with pytest.raises(UsageError, match="--dim"):
        plan(chunks, models=["all-minilm-l6-v2"], dim=7)


def test_a_plan_for_other_cards_says_how_modes_share_them(chunks: Path, tmp_path: Path) -> None:
    models = [bert(), str(tiny_model("qwen2"))]
    made = plan(chunks, tmp_path / "out", models=models, gpus="t4x2", price_per_hour=0.5, session="1h", offline=True)
    (collection,) = made.collections
    assert [device.hardware for device in made.devices] == ["Tesla T4", "Tesla T4"]
    assert [mode.mode for mode in collection.modes if mode.fits] == ["exclusive", "sequential", "simultaneous"]
    assert all(mode.seconds for mode in collection.modes)
    assert (collection.mode, [spec.dim for spec in collection.vectors]) == ("simultaneous", [32, 64])
    assert [one.dtype for one in collection.passes] == ["float16", "float16"]
    assert made.time is not None
    assert made.time.total is not None
    assert "assumed" in made.time.total.basis
    assert (made.time.sessions_low, made.time.sessions_high) == (1, 1)
    assert made.cost is not None
    assert made.cost.low == pytest.approx(made.time.total.low / 3600 * 0.5)
    assert made.cost.low < made.cost.high
    assert made.verdict.startswith("fits: 2 x Tesla T4, simultaneous; ")
    summary = run(chunks, tmp_path / "out", models=models)
    assert summary.plan is not None
    assert "is computed otherwise" in summary.plan.why  # in fp16 on cards, and in fp32 here


def test_a_model_larger_than_the_card_does_not_fit(chunks: Path) -> None:
    made = plan(chunks, models=["bge-m3"], gpus="1GB", offline=True)
    assert not made.fits
    assert made.verdict.startswith("does not fit: docs: the weights of bge-m3")
    assert not made.devices[0].fits
    assert only(made)[1].seconds is None


def test_a_model_that_is_not_here_is_estimated_from_the_registry(chunks: Path) -> None:
    made = plan(chunks, models=["bge-m3"], gpus="t4", offline=True)
    _, one = only(made)
    assert not made.fits
    assert "bge-m3 is not on this machine; otherwise it fits: Tesla T4" in made.verdict
    assert (one.exact, one.fingerprint) == (False, None)
    assert made.models[0].weight_bytes == pytest.approx(1.135e9, rel=0.01)


def test_a_companion_that_may_be_missing_is_left_out(chunks: Path) -> None:
    models = [bert(), "coderankembed"]
    options: dict[str, Any] = {"models": models, "offline": True, "trust_remote_code": "coderankembed", "gpus": "cpu"}
    made = plan(chunks, **options)
    assert not made.fits
    assert [each.model for each in made.missing_models] == ["coderankembed"]
    allowed = plan(chunks, **options, allow_missing_companions=True)
    assert allowed.fits, allowed.problems
    assert any("continuing without coderankembed" in warning for warning in allowed.warnings)


def test_bad_input_is_an_error_or_a_verdict(chunks: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nothing = plan(tmp_path / "empty", tmp_path / "out")
    assert not nothing.fits
    assert nothing.verdict.startswith("nothing to embed: no chunk files below")
    with pytest.raises(UnknownModelError):
        plan(chunks, models=["no-such-model"])
    for gpus, part in (("t4x0", "1 to 64"), ("t44", "Did you mean t4")):
        with pytest.raises(UsageError, match=part):
            plan(chunks, models=[bert()], gpus=gpus)
    with pytest.raises(UsageError, match="--session"):
        plan(chunks, session="soon")
    with pytest.raises(UsageError, match="--price-per-hour"):
        plan(chunks, price_per_hour=-1)
    with pytest.raises(UsageError, match="--calibrate"):
        plan(chunks, calibrate=True, gpus="t4")


def test_every_record_rejected_is_told_by_collection(write_chunks: WriteChunks) -> None:
    write_chunks(TEXTS[:3], collection="good")
    made = plan(write_chunks([" ", ""], collection="bad"), models=[bert()], gpus="cpu")
    assert not made.fits
    bad = next(each for each in made.collections if each.collection == "bad")
    assert bad.error == "all 2 records are rejected"
    assert "the text is" in bad.rejected_because[0]
    assert next(each for each in made.collections if each.collection == "good").passes[0].new_texts == 3


def test_a_file_that_is_no_plan_is_not_overwritten(chunks: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    for content in (b"mine", json.dumps({"program": "other"}).encode()):
        (output / "plan.json").write_bytes(content)
        with pytest.raises(UsageError, match="is no plan of this version"):
            plan(chunks, output, models=[bert()], gpus="cpu")
        assert (output / "plan.json").read_bytes() == content
    summary = run(chunks, output)
    assert summary.ok
    assert summary.plan is None
    assert any("plan.json is damaged" in warning for warning in summary.warnings)
    (output / "plan.json").unlink()
    (output / "plan.json" / "inside").mkdir(parents=True)
    with pytest.raises(UsageError, match="is no plan"):
        plan(chunks, output, models=[bert()], gpus="cpu")
    assert (output / "plan.json" / "inside").is_dir()


def test_a_plan_beside_chunks_is_no_chunk_file(chunks: Path) -> None:
    made = plan(chunks, chunks / "out", models=[bert()], gpus="cpu")
    assert made.fits, made.problems
    summary = run(chunks, chunks / "out")
    assert [each.collection for each in summary.collections] == ["docs"]
    assert summary.plan is not None
    assert summary.plan.same_work


def test_earlier_runs_tell_how_long_it_takes(chunks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HISTORY_VARIABLE, str(tmp_path / "history.json"))
    first = plan(chunks, models=[bert()], devices="cpu")
    assert first.time is not None
    assert first.time.total is not None
    assert "a matrix product" in first.time.total.basis
    run(chunks, tmp_path / "out")
    second = plan(chunks, models=[bert()], devices="cpu")
    assert only(second)[1].seconds is not None
    assert "an earlier pass" in str(only(second)[1].seconds and only(second)[1].seconds.basis)  # type: ignore[union-attr]
    assert second.time is not None
    assert second.time.stages["load models"].basis == "earlier runs on this machine"
    (tmp_path / "history.json").write_text("not a history")
    third = plan(chunks, models=[bert()], devices="cpu")
    assert third.fits
    assert any("history.json is damaged" in warning for warning in third.warnings)


def test_a_calibration_measures_this_machine(chunks: Path, tmp_path: Path) -> None:
    made = plan(chunks, tmp_path / "out", models=[bert()], devices="cpu", calibrate=True)
    _, one = only(made)
    assert one.seconds is not None
    assert one.seconds.basis == "batches calibrated on this machine"
    assert 0 < one.seconds.low < one.seconds.high
    assert list(tree(tmp_path / "out")) == ["plan.json"]


def test_weights_are_not_needed(chunks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-bert"
    shutil.copytree(bert(), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    made = plan(chunks, models=[str(folder)], gpus="t4")
    _, one = only(made)
    assert one.tokens > 0
    assert one.peak_bytes["cuda:0"] > made.models[0].weight_bytes > 0
    assert not made.fits
    with pytest.raises(Exception, match="no weights") as caught:
        embed(chunks, tmp_path / "out", models=[str(folder)], quiet=True)
    assert not isinstance(caught.value, MissingModelError)


def test_a_mode_that_is_faster_for_certain_is_named() -> None:
    def collection(**seconds: tuple[float, float]) -> PlannedCollection:
        modes = [
            PlannedMode(mode=mode, fits=True, why="", seconds=PlannedSeconds(low=low, high=high, basis="assumed"))
            for mode, (low, high) in seconds.items()
        ]
        return PlannedCollection(collection="docs", mode="simultaneous", modes=modes)

    assert list(mode_notes([collection(exclusive=(24, 38), simultaneous=(40, 63))])) == [
        "docs: encoding takes 24 s to 38 s with --mode exclusive, and 40 s to 63 s in mode simultaneous"
    ]
    assert list(mode_notes([collection(exclusive=(24, 41), simultaneous=(40, 63)), collection()])) == []


def test_words_for_bm25_are_counted_as_the_run_counts_them(chunks: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"models": [bert()], "devices": "cpu", "sparse": "bm25"}
    made = plan(chunks, tmp_path / "out", exports="npy,parquet", **options)
    (collection,) = made.collections
    assert collection.words is not None
    assert (collection.words.new_texts, collection.words.stored_texts) == (81, 0)
    assert [spec.kind for spec in collection.vectors] == ["dense", "sparse"]
    assert made.time is not None
    assert "count words" in made.time.stages
    summary = run(chunks, tmp_path / "out", sparse="bm25")
    assert summary.plan is not None
    assert (summary.plan.same_work, summary.plan.why) == (True, "")
    planned, actual = figures(summary)["words"]
    assert planned == actual > 0
    counted = next(each for each in summary.collections[0].passes if each.counts_words)
    assert counted.fingerprint == collection.words.fingerprint
    planned, actual = figures(summary)["parquet export on disk"]
    assert planned == pytest.approx(actual, rel=0.25)
    again = plan(chunks, tmp_path / "out", **options)
    assert again.collections[0].words is not None
    assert (again.collections[0].words.new_texts, again.collections[0].words.stored_texts) == (0, 81)
    assert "nothing is to be encoded" in again.verdict
    german = plan(chunks, tmp_path / "out", **{**options, "sparse": "bm25=german"})
    assert only(german)[1].new_texts == 0
    assert "nothing is to be encoded" not in german.verdict
    without = plan(chunks, tmp_path / "other", models=[bert()], devices="cpu")
    assert without.collections[0].words is None
    assert run(chunks, tmp_path / "other", sparse="bm25").plan.why == "docs: it is without BM25"  # type: ignore[union-attr]


def test_what_a_sparse_model_takes_is_said_to_be_missing(chunks: Path) -> None:
    made = plan(chunks, models=[bert()], gpus="cpu", sparse="splade=some/splade")
    assert any("splade (some/splade)" in note for note in made.warnings)


def test_a_plan_for_nodes_says_throughput_cost_and_bottleneck(chunks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = plan(chunks, models=[bert()], gpus="t4x2", price_per_hour=1.0)
    made = plan(chunks, models=[bert()], gpus="t4x2", price_per_hour=1.0, nodes=4)
    assert alone.cluster is None
    assert made.cluster is not None
    assert made.cost is not None
    assert (made.cluster.nodes, made.cluster.bottleneck, made.cluster.texts) == (4, "nodes", 81)
    assert made.cluster.useful_nodes == 3
    assert made.cluster.bytes_back == 81 * (4 * 32 + 17)
    assert made.cluster.bytes_out == sum(len(text.encode()) + 16 for text in {*TEXTS, LONG})
    assert (made.cost.machines, made.cost.price_per_hour) == (4, 1.0)
    assert "4 nodes of 2 x Tesla T4" in made.verdict
    assert "the bottleneck is the nodes;" in made.verdict
    assert any("not measured" in note for note in made.warnings) == ("driver" not in made.cluster.limits)
    assert Plan.model_validate_json(made.model_dump_json()) == made


def test_modes_on_nodes_have_one_model_on_a_node_at_a_time(chunks: Path) -> None:
    models = [bert(), str(tiny_model("mpnet", hidden=32, layers=2))]
    made = plan(chunks, models=models, gpus="t4x2", nodes=1)
    (collection,) = made.collections
    assert collection.mode == "exclusive"
    assert "every node works on each model in turn" in collection.mode_reason
    fits = {each.mode: each.fits for each in collection.modes}
    assert fits == {"exclusive": True, "sequential": True, "simultaneous": False}
    more = plan(chunks, models=models, gpus="t4x2", nodes=2, mode="simultaneous").collections[0]
    assert more.mode == "simultaneous"
    assert all(each.fits for each in more.modes)
    assert all(each.devices == ["cuda:0", "cuda:1"] for each in more.passes)


@pytest.mark.parametrize("nodes", [0, -1, "many"])
def test_a_number_of_nodes_that_cannot_be_is_refused(chunks: Path, nodes: Any) -> None:
    with pytest.raises(UsageError, match="--nodes"):
        plan(chunks, nodes=nodes)
