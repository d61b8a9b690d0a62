"""`UltimateKaggleEmbedderV4`, as notebooks use it: load, generate, export, search."""

from __future__ import annotations

import inspect
import json
import signal
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.compat.conftest import Make
from tests.conftest import WriteChunks
from tests.support.clock import wait_until
from tests.support.hub_server import HubServer
from tests.support.tiny_models import tiny_splade
from ultimate_embedder.compat import (
    AdvancedPreprocessingConfig,
    EnsembleConfig,
    KaggleExportConfig,
    KaggleGPUConfig,
    UltimateKaggleEmbedderV4,
)
from ultimate_embedder.compat.telemetry import Telemetry
from ultimate_embedder.errors import MissingModelError, UltimateEmbedderError, UsageError
from ultimate_embedder.events import BatchEncoded, Event

KEYWORDS: dict[str, Any] = {
    "model_name": "jina-code-embeddings-1.5b",
    "gpu_config": None,
    "export_config": None,
    "preprocessing_config": None,
    "enable_ensemble": False,
    "ensemble_config": None,
    "reranking_config": None,
    "companion_dense_models": None,
    "enable_sparse": False,
    "sparse_models": None,
    "matryoshka_dim": None,
    "local_files_only": False,
    "force_cpu": False,
    "hf_cache_dir": None,
    "refresh_cache": False,
    "gpu0_soft_limit_gb": 12.0,
}
RESULT_KEYS = {
    *("total_embeddings_generated", "embedding_dimension", "processing_time_seconds", "chunks_per_second"),
    *("optimal_batch_size", "gpu_count", "precision", "model_used", "models_executed", "ensemble_mode"),
    *("lease_events", "mitigation_events", "cache_events", "batch_progress"),
}
MODES: dict[str, dict[str, bool] | None] = {
    "disabled": None,
    "parallel": {},
    "sequential": {"sequential_passes": True},
    "exclusive": {"exclusive_mode": True},
}
TEXTS = {
    "guide": [f"how to turn screw number {number} " * (number % 4 + 1) for number in range(9)],
    "notes": [f"what was said on day {number}" for number in range(5)],
}
ALL_TEXTS = TEXTS["guide"] + TEXTS["notes"]
COUNT = len(ALL_TEXTS)
HUB_ID = "BAAI/bge-m3"


class Run(NamedTuple):
    """An embedder that has generated, and what it said."""

    embedder: UltimateKaggleEmbedderV4
    results: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return list(self.embedder.models)

    def mitigations(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.results["mitigation_events"] if event["type"] == kind]


def write_texts(folder: Path) -> Path:
    for collection, texts in TEXTS.items():
        (folder / collection).mkdir(parents=True)
        (folder / collection / "all_chunks.json").write_text(json.dumps(texts))
    return folder


def units(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def vectors(embedder: UltimateKaggleEmbedderV4) -> np.ndarray:
    assert embedder.embeddings is not None
    return embedder.embeddings


def encoded_rows(results: dict[str, Any]) -> int:
    return sum(batch["rows"] for batch in results["batch_progress"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, models: list[str]) -> dict[str, Run]:
    """One run in each mode, over the same two collections."""
    folder = tmp_path_factory.mktemp("runs")
    chunks = write_texts(folder / "chunks")
    made = {}
    for mode, options in MODES.items():
        embedder = UltimateKaggleEmbedderV4(
            models[0],
            export_config=KaggleExportConfig(working_dir=str(folder / mode)),
            enable_ensemble=options is not None,
            ensemble_config=EnsembleConfig(ensemble_models=models, **(options or {})),  # type: ignore[arg-type]
        )
        embedder.load_chunks_from_processing(chunks)
        made[mode] = Run(embedder, embedder.generate_embeddings_kaggle_optimized())
    return made


@pytest.fixture(params=MODES)
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """A run, in each mode."""
    return runs[request.param]


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "chunks")


@pytest.fixture
def ensemble(models: list[str]) -> dict[str, Any]:
    """The keywords of an ensemble of both models."""
    return {"enable_ensemble": True, "ensemble_config": EnsembleConfig(ensemble_models=models)}


# -- making one


def test_keywords_and_their_defaults_are_the_old_ones() -> None:
    parameters = list(inspect.signature(UltimateKaggleEmbedderV4).parameters.values())
    assert [(each.name, each.default) for each in parameters[: len(KEYWORDS)]] == list(KEYWORDS.items())


def test_an_unknown_keyword_is_an_error(make: Make) -> None:
    with pytest.raises(TypeError, match="no_such_keyword"):
        make(no_such_keyword=1)


def test_every_keyword_is_accepted(make: Make, models: list[str], tmp_path: Path) -> None:
    given = {
        "gpu_config": KaggleGPUConfig(precision="fp32"),
        "preprocessing_config": AdvancedPreprocessingConfig(),
        "companion_dense_models": models[1:],
        "matryoshka_dim": 16,
        "local_files_only": True,
        "force_cpu": True,
        "hf_cache_dir": tmp_path / "cache",
        "gpu0_soft_limit_gb": 10.0,
    }
    assert list(make(**given).models) == ["tiny-bert", "tiny-mpnet"]


def test_sparse_vectors_are_made_beside_the_others(make: Make, write_chunks: WriteChunks) -> None:
    embedder = make(enable_sparse=True, sparse_models=["qdrant-bm25", str(tiny_splade())])
    assert list(embedder.sparse_models) == ["tiny-splade"]
    embedder.load_chunks_from_processing(write_chunks(["a text of mice", "and another of clocks"]))
    results = embedder.generate_embeddings_kaggle_optimized()
    assert results["models_executed"] == ["tiny-bert", "tiny-splade", "bm25"]
    paths = embedder.export_for_local_qdrant()
    vector = json.loads(Path(paths["sparse_jsonl"]).read_text().splitlines()[0])["vector"]
    assert list(vector) == ["", "tiny-splade", "bm25"]
    assert vector["bm25"].keys() == {"indices", "values"}
    assert embedder.embeddings_by_model.keys() == {"tiny-bert"}


def test_sparse_models_that_are_not_enabled_are_a_warning(make: Make) -> None:
    with pytest.warns(UserWarning, match="sparse_models has no effect without enable_sparse=True"):
        make(sparse_models=["splade"])


def test_the_model_that_is_named_is_the_primary_wherever_the_ensemble_lists_it(make: Make, models: list[str]) -> None:
    embedder = make(enable_ensemble=True, ensemble_config=EnsembleConfig(ensemble_models=models[::-1]))
    assert list(embedder.models) == ["tiny-bert", "tiny-mpnet"]
    assert embedder.primary_model is embedder.models["tiny-bert"]
    assert embedder.companion_models == {"tiny-mpnet": embedder.models["tiny-mpnet"]}


def test_models_wait_on_the_host(make: Make, ensemble: dict[str, Any]) -> None:
    embedder = make(**ensemble)
    assert {str(next(model.parameters()).device) for model in embedder.models.values()} == {"cpu"}
    assert embedder.companion_device_map == {"tiny-mpnet": "cpu"}


def test_an_ensemble_that_is_not_enabled_is_not_loaded(make: Make, models: list[str]) -> None:
    embedder = make(ensemble_config=EnsembleConfig(ensemble_models=models))
    assert (list(embedder.models), embedder.companion_models) == (["tiny-bert"], {})


def test_a_weight_for_a_model_that_is_not_there_is_refused(make: Make, models: list[str]) -> None:
    config = EnsembleConfig(ensemble_models=models, model_weights={"bge-m3": 0.5})
    with pytest.raises(UsageError, match="model_weights names bge-m3"):
        make(enable_ensemble=True, ensemble_config=config)


def test_output_goes_below_the_working_folder(make: Make, tmp_path: Path) -> None:
    export = KaggleExportConfig(working_dir=str(tmp_path / "work"), output_prefix="mine")
    assert make(export_config=export).output_folder == tmp_path / "work" / "mine"


@pytest.mark.parametrize("prefix", ["../mine", "/mine", "..", ""])
def test_a_prefix_that_leads_elsewhere_is_refused(make: Make, tmp_path: Path, prefix: str) -> None:
    with pytest.raises(UsageError, match="output_prefix"):
        make(export_config=KaggleExportConfig(working_dir=str(tmp_path / "work"), output_prefix=prefix))


def test_output_goes_below_the_output_path_of_the_hardware_options_too(make: Make, tmp_path: Path) -> None:
    embedder = make(export_config=None, gpu_config=KaggleGPUConfig(output_path=str(tmp_path / "out")))
    assert embedder.output_folder == tmp_path / "out" / "ultimate_embeddings_v4"


@pytest.mark.skipif(Path("/kaggle/working").exists(), reason="this is Kaggle")
def test_away_from_kaggle_output_goes_below_the_current_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert make(export_config=None).output_folder == tmp_path / "ultimate_embeddings_v4"


@pytest.mark.parametrize("keywords", [{"force_cpu": True}, {}])
def test_the_cpu_can_be_forced_by_keyword_and_by_variable(
    make: Make, chunks: Path, keywords: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "cuda")
    if not keywords:
        monkeypatch.setenv("EMBEDDER_FORCE_CPU", "1")
    embedder = make(**keywords)
    embedder.load_chunks_from_processing(chunks)
    assert embedder.generate_embeddings_kaggle_optimized()["gpu_count"] == 0


# -- models from a hub


def test_a_model_is_downloaded_once_and_then_in_the_cache(make: Make, hub: HubServer, models: list[str]) -> None:
    commit = hub.publish(HUB_ID, Path(models[0]))
    first = make(model_name="bge-m3")
    hub.requests.clear()
    second = make(model_name="bge-m3")
    (downloaded,), (found,) = first.telemetry.cache_events, second.telemetry.cache_events
    assert (downloaded["status"], found["status"]) == ("downloaded", "cache_hit")
    assert hub.requests == []
    assert set(found) == {"model_id", "path", "revision", "status", "timestamp"}
    assert (found["model_id"], found["revision"]) == (HUB_ID, commit)
    assert (Path(found["path"]) / "model.safetensors").is_file()


def test_the_cache_folder_can_be_chosen(make: Make, hub: HubServer, models: list[str], tmp_path: Path) -> None:
    hub.publish(HUB_ID, Path(models[0]))
    (event,) = make(model_name="bge-m3", hf_cache_dir=tmp_path / "mine").telemetry.cache_events
    assert (tmp_path / "mine") in Path(event["path"]).parents


@pytest.mark.parametrize("keywords", [{"refresh_cache": True}, {}])
def test_a_newer_model_is_fetched_by_keyword_and_by_variable(
    make: Make, hub: HubServer, models: list[str], keywords: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish(HUB_ID, Path(models[0]))
    make(model_name="bge-m3")
    newer = hub.publish(HUB_ID, Path(models[1]))
    if not keywords:
        monkeypatch.setenv("EMBEDDER_REFRESH_CACHE", "1")
    (event,) = make(model_name="bge-m3", **keywords).telemetry.cache_events
    assert (event["status"], event["revision"]) == ("refreshed", newer)


def test_local_files_only_makes_no_request(make: Make, hub: HubServer, models: list[str]) -> None:
    hub.publish(HUB_ID, Path(models[0]))
    with pytest.raises(MissingModelError, match="bge-m3 is not on this machine"):
        make(model_name="bge-m3", local_files_only=True)
    assert hub.requests == []


def test_a_companion_that_is_missing_is_an_error(make: Make, models: list[str], tmp_path: Path) -> None:
    config = EnsembleConfig(ensemble_models=[models[0], "bge-m3"])
    with pytest.raises(MissingModelError, match="bge-m3"):
        make(enable_ensemble=True, ensemble_config=config, hf_cache_dir=tmp_path)


# -- loading chunks


def test_loading_counts_what_is_there_and_what_is_not_usable(make: Make, write_chunks: WriteChunks) -> None:
    record = {"text": "a", "metadata": {"chunk_id": "c1", "source_file": "a.md"}}
    write_chunks([record, {"text": "  "}], "docs", "a_chunks.json")
    write_chunks({"chunks": ["b", "c"]}, "docs", "b_chunks.json")
    write_chunks({"total": 7}, "docs", "a_processing_summary.json")
    root = write_chunks(["d"], "code")
    embedder = make()
    counts = embedder.load_chunks_from_processing(root)
    assert counts["collections_loaded"] == 2
    assert counts["total_chunks_loaded"] == 4
    assert counts["chunks_by_collection"] == {"code": 1, "docs": 3}
    (error,) = counts["loading_errors"]
    assert (error["file"], error["position"]) == ("a_chunks.json", 1)
    assert embedder.chunk_texts == ["d", "a", "b", "c"]


def test_metadata_says_where_a_chunk_is_from(make: Make, write_chunks: WriteChunks) -> None:
    root = write_chunks([{"text": "a", "metadata": {"chunk_id": "c1", "source_file": "a.md", "token_count": 3}}])
    embedder = make()
    embedder.load_chunks_from_processing(str(root))
    expected = {"chunk_id": "c1", "source_file": "a.md", "token_count": 3}
    assert embedder.chunks_metadata == [{**expected, "collection_name": "docs", "file": "a_chunks.json"}]


def test_a_folder_that_is_not_there_is_an_error(make: Make, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        make().load_chunks_from_processing(tmp_path / "nowhere")


def test_chunks_that_are_loaded_later_replace_the_earlier_ones(make: Make, chunks: Path, tmp_path: Path) -> None:
    embedder = make()
    embedder.load_chunks_from_processing(chunks)
    embedder.generate_embeddings_kaggle_optimized()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x_chunks.json").write_text('["just this"]')
    embedder.load_chunks_from_processing(tmp_path / "more")
    assert embedder.chunk_texts == ["just this"]
    assert (embedder.embeddings, embedder.embeddings_by_model) == (None, {})


# -- generating, in every mode


def test_results_have_the_same_keys_in_every_mode(runs: dict[str, Run]) -> None:
    keys = {mode: set(run.results) for mode, run in runs.items()}
    assert keys["disabled"] >= RESULT_KEYS
    assert all(each == keys["disabled"] for each in keys.values())


@pytest.mark.parametrize("mode", MODES)
def test_results_name_the_mode_and_the_models(runs: dict[str, Run], mode: str) -> None:
    results = runs[mode].results
    both = ["tiny-bert", "tiny-mpnet"]
    assert results["ensemble_mode"] == mode
    assert results["model_used"] == "tiny-bert"
    assert results["models_executed"] == (both if MODES[mode] is not None else both[:1])


def test_results_have_numbers(run: Run) -> None:
    results = run.results
    assert (results["total_embeddings_generated"], results["embedding_dimension"]) == (COUNT, 32)
    assert (results["gpu_count"], results["precision"]) == (0, "fp32")
    assert results["processing_time_seconds"] > 0
    assert results["chunks_per_second"] == pytest.approx(COUNT / results["processing_time_seconds"])
    assert results["optimal_batch_size"] == max(batch["rows"] for batch in results["batch_progress"]) > 0


def test_results_are_kept_and_written(run: Run) -> None:
    assert run.embedder.processing_stats == run.results
    written = json.loads(Path(run.embedder.export_for_local_qdrant()["stats"]).read_text())
    assert written["total_embeddings_generated"] == COUNT
    assert written.keys() == run.results.keys()


def test_every_text_goes_once_through_every_model(run: Run) -> None:
    for name in run.names:
        batches = [batch for batch in run.results["batch_progress"] if batch["model"] == name]
        assert sum(batch["rows"] for batch in batches) == COUNT


def test_leases_are_acquired_and_released_with_their_memory(run: Run) -> None:
    events = run.results["lease_events"]
    assert run.embedder.telemetry.gpu_lease_events[: len(events)] == events
    for name in run.names:
        kinds = [event["event_type"] for event in events if event["model"] == name]
        assert len(kinds) >= 2 * len(TEXTS)
        assert kinds == ["acquire", "release"] * (len(kinds) // 2)
    for event in events:
        assert set(event) == {"timestamp", "event_type", "model", "device_ids", "vram"}
        assert event["device_ids"] == list(event["vram"]) == ["cpu"]
        assert set(event["vram"]["cpu"]) == {"allocated_gb", "reserved_gb", "free_gb", "total_gb"}
        assert event["vram"]["cpu"]["total_gb"] > event["vram"]["cpu"]["allocated_gb"] > 0


def test_each_pass_is_among_the_mitigations_when_it_starts_and_when_it_ends(run: Run) -> None:
    share = 1 / len(run.names)
    for kind in ("ensemble_pass_started", "ensemble_pass_completed"):
        events = run.mitigations(kind)
        assert sorted(event["model"] for event in events) == sorted(run.names * len(TEXTS))
        assert {event["device"] for event in events} == {"cpu"}
        assert {event["aggregation_weight"] for event in events} == {share}
        assert all(event["timestamp"] > 0 for event in events)
    for event in run.mitigations("ensemble_pass_completed"):
        assert event["duration"] > 0
        assert 0 < event["batch_size"] <= event["rows"]


def test_models_from_folders_count_as_cached(run: Run) -> None:
    events = run.results["cache_events"]
    assert [event["model_id"] for event in events] == run.names
    assert {event["status"] for event in events} == {"cache_hit"}
    assert all(Path(event["path"]).is_dir() and event["revision"] for event in events)


def test_the_fused_vectors_are_the_mean_of_the_models_vectors(run: Run) -> None:
    assert run.embedder.chunk_texts == ALL_TEXTS
    by_model = run.embedder.embeddings_by_model
    assert list(by_model) == run.names
    mean = np.mean([units(each) for each in by_model.values()], axis=0)
    np.testing.assert_allclose(vectors(run.embedder), units(mean), atol=1e-6)


def test_vectors_do_not_depend_on_the_mode(runs: dict[str, Run]) -> None:
    parallel = vectors(runs["parallel"].embedder)
    for mode in ("sequential", "exclusive"):
        np.testing.assert_allclose(vectors(runs[mode].embedder), parallel, atol=1e-5)


def test_metadata_and_vectors_are_in_one_order(run: Run) -> None:
    names = [metadata["collection_name"] for metadata in run.embedder.chunks_metadata]
    assert names == [name for name, texts in TEXTS.items() for _ in texts]
    assert len(vectors(run.embedder)) == len(names)


# -- generating: what is fused, and what is done again


def test_nothing_is_generated_before_chunks_are_loaded(make: Make) -> None:
    with pytest.raises(UsageError, match="load_chunks_from_processing"):
        make().generate_embeddings_kaggle_optimized()


def test_a_folder_without_chunks_is_an_error(make: Make, write_chunks: WriteChunks) -> None:
    embedder = make()
    embedder.load_chunks_from_processing(write_chunks([]))
    with pytest.raises(UltimateEmbedderError, match="no chunks below"):
        embedder.generate_embeddings_kaggle_optimized()


def test_weights_are_those_of_the_config(make: Make, models: list[str], chunks: Path) -> None:
    weights = {models[0]: 3.0, models[1]: 1.0}
    embedder = make(enable_ensemble=True, ensemble_config=EnsembleConfig(ensemble_models=models, model_weights=weights))
    embedder.load_chunks_from_processing(chunks)
    results = embedder.generate_embeddings_kaggle_optimized()
    first, other = embedder.embeddings_by_model.values()
    np.testing.assert_allclose(vectors(embedder), units(0.75 * units(first) + 0.25 * units(other)), atol=1e-6)
    shares = {event["model"]: event["aggregation_weight"] for event in results["mitigation_events"]}
    assert shares == {"tiny-bert": 0.75, "tiny-mpnet": 0.25}


def test_vectors_can_be_joined_end_to_end(make: Make, models: list[str], chunks: Path) -> None:
    config = EnsembleConfig(ensemble_models=models, aggregation_method="concat")
    embedder = make(enable_ensemble=True, ensemble_config=config)
    embedder.load_chunks_from_processing(chunks)
    assert embedder.generate_embeddings_kaggle_optimized()["embedding_dimension"] == 64


def test_companions_outside_an_ensemble_keep_their_own_vectors(make: Make, models: list[str], chunks: Path) -> None:
    embedder = make(companion_dense_models=models[1:])
    embedder.load_chunks_from_processing(chunks)
    results = embedder.generate_embeddings_kaggle_optimized()
    by_model = embedder.embeddings_by_model
    assert results["models_executed"] == list(by_model) == ["tiny-bert", "tiny-mpnet"]
    np.testing.assert_array_equal(vectors(embedder), by_model["tiny-bert"])


def test_vectors_can_be_shorter(make: Make, chunks: Path) -> None:
    embedder = make(matryoshka_dim=16)
    embedder.load_chunks_from_processing(chunks)
    assert embedder.generate_embeddings_kaggle_optimized()["embedding_dimension"] == 16
    np.testing.assert_allclose(np.linalg.norm(vectors(embedder), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("variable", "mode"),
    [("EMBEDDER_SEQUENTIAL_ENSEMBLE", "sequential"), ("EMBEDDER_EXCLUSIVE_ENSEMBLE", "exclusive")],
)
def test_a_variable_can_choose_the_mode(
    make: Make, ensemble: dict[str, Any], chunks: Path, variable: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    embedder = make(**ensemble)
    embedder.load_chunks_from_processing(chunks)
    assert embedder.generate_embeddings_kaggle_optimized()["ensemble_mode"] == mode


def test_a_complete_run_is_computed_again_when_asked_for_again(make: Make, write_chunks: WriteChunks) -> None:
    write_chunks(["one", "two"])
    root = write_chunks([], "nothing in it")
    embedder = make()
    embedder.load_chunks_from_processing(root)
    first = embedder.generate_embeddings_kaggle_optimized()
    again = embedder.generate_embeddings_kaggle_optimized()
    assert encoded_rows(first) == encoded_rows(again) == 2
    assert len(again["lease_events"]) == 2  # its own, not those of the first run too
    assert len(embedder.telemetry.gpu_lease_events) == 4


class InterruptAfterOneBatch(Telemetry):
    """What a user does who presses Ctrl-C."""

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, BatchEncoded) and len(self.batch_progress) == 1:
            handler = signal.getsignal(signal.SIGINT)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            # the main thread takes notice before the next batch: a second Ctrl-C would leave at once from then on
            wait_until(lambda: signal.getsignal(signal.SIGINT) is not handler)


def test_an_interrupted_run_is_resumed(make: Make, write_chunks: WriteChunks) -> None:
    texts = [f"{number} " * 300 for number in range(20)]  # of 512 tokens, as batches have 2048
    embedder = make()
    embedder.load_chunks_from_processing(write_chunks(texts))
    embedder.telemetry = interrupting = InterruptAfterOneBatch()
    with pytest.raises(UltimateEmbedderError, match="docs partial: stopped: interrupted by SIGINT"):
        embedder.generate_embeddings_kaggle_optimized()
    done = sum(batch["rows"] for batch in interrupting.batch_progress)
    embedder.telemetry = Telemetry()
    results = embedder.generate_embeddings_kaggle_optimized()
    assert 0 < done < len(texts)
    assert encoded_rows(results) == len(texts) - done
    assert results["total_embeddings_generated"] == len(vectors(embedder)) == len(texts)


# -- a few texts, exports, search


def test_texts_get_the_vectors_that_chunks_get(runs: dict[str, Run]) -> None:
    embedder = runs["exclusive"].embedder
    found = embedder.generate_ensemble_embeddings([ALL_TEXTS[3], ALL_TEXTS[12], ALL_TEXTS[3]])
    np.testing.assert_allclose(found, vectors(embedder)[[3, 12, 3]], atol=1e-5)


@pytest.mark.parametrize("texts", [["fine", ""], ["  "], [None]])
def test_texts_must_have_something_in_them(runs: dict[str, Run], texts: list[Any]) -> None:
    with pytest.raises(UsageError, match="every text must be a string that is not empty"):
        runs["disabled"].embedder.generate_ensemble_embeddings(texts)


def test_exports_are_where_they_are_said_to_be(run: Run) -> None:
    paths = run.embedder.export_for_local_qdrant()
    kinds = ("npy", "parquet", "jsonl", "qdrant")
    assert set(paths) == {"stats", *(f"{name}/{kind}" for name in TEXTS for kind in kinds)}
    assert all(Path(path).exists() for path in paths.values())


def test_exporting_computes_nothing_again(run: Run) -> None:
    before = len(run.embedder.telemetry.batch_progress)
    run.embedder.export_for_local_qdrant()
    assert len(run.embedder.telemetry.batch_progress) == before


def test_exports_of_one_collection_have_plain_names_and_can_be_chosen(
    make: Make, write_chunks: WriteChunks, tmp_path: Path
) -> None:
    embedder = make(export_config=KaggleExportConfig(working_dir=str(tmp_path), export_numpy=False, export_jsonl=False))
    embedder.load_chunks_from_processing(write_chunks(["one"]))
    embedder.generate_embeddings_kaggle_optimized()
    assert set(embedder.export_for_local_qdrant()) == {"stats", "parquet", "qdrant"}


def test_the_target_collection_is_named_after_collection_and_models(runs: dict[str, Run], make: Make) -> None:
    assert runs["disabled"].embedder.get_target_collection_name() == "guide__tiny-bert"
    assert runs["parallel"].embedder.get_target_collection_name() == "guide__tiny-bert__tiny-mpnet__weighted_average"
    with pytest.raises(UsageError, match="generate_embeddings_kaggle_optimized"):
        make().get_target_collection_name()


def test_a_search_finds_the_nearest_texts_first(run: Run) -> None:
    hits = run.embedder.search_with_reranking(ALL_TEXTS[4], top_k=5)
    assert [set(hit) for hit in hits] == [{"index", "score", "text", "metadata"}] * 5
    assert (hits[0]["index"], hits[0]["text"]) == (4, ALL_TEXTS[4])
    assert hits[0]["score"] == pytest.approx(1, abs=1e-5)
    assert hits[0]["metadata"] == run.embedder.chunks_metadata[4]
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)


def test_a_search_takes_no_more_than_the_candidates(run: Run) -> None:
    assert len(run.embedder.search_with_reranking("screw", initial_candidates=3)) == 3
    assert len(run.embedder.search_with_reranking("screw")) == COUNT


def test_a_search_over_named_vectors_weighs_the_models(make: Make, models: list[str], chunks: Path) -> None:
    embedder = make(companion_dense_models=models[1:])
    embedder.load_chunks_from_processing(chunks)
    embedder.generate_embeddings_kaggle_optimized()
    best = embedder.search_with_reranking(ALL_TEXTS[7], top_k=1)[0]
    assert (best["index"], best["score"]) == (7, pytest.approx(1, abs=1e-5))


def test_nothing_is_searched_before_a_run(make: Make) -> None:
    with pytest.raises(UsageError, match="generate_embeddings_kaggle_optimized"):
        make().search_with_reranking("anything")
