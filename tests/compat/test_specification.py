"""Sentences of the specification, word for word: the docstring of a test is the sentence that it comes from."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.compat.conftest import Make
from tests.support.hub_server import Fault, HubServer, dead
from tests.support.slow import slow
from ultimate_embedder.compat import EnsembleConfig, UltimateKaggleEmbedderV4
from ultimate_embedder.compat.announce import announce
from ultimate_embedder.compat.script import main
from ultimate_embedder.errors import MissingModelError, ModelError, UsageError

TEXTS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
HUB_ID = "BAAI/bge-m3"


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    for name, texts in {"docs": TEXTS, "notes": TEXTS[:3]}.items():
        (tmp_path / "chunks" / name).mkdir(parents=True)
        (tmp_path / "chunks" / name / "a_chunks.json").write_text(json.dumps(texts))
    return tmp_path / "chunks"


@pytest.fixture
def generated(make: Make, models: list[str], chunks: Path) -> UltimateKaggleEmbedderV4:
    """An embedder that has embedded with two models."""
    config = EnsembleConfig(ensemble_models=models, exclusive_mode=True)
    embedder = make(enable_ensemble=True, ensemble_config=config)
    embedder.load_chunks_from_processing(chunks)
    embedder.generate_embeddings_kaggle_optimized()
    return embedder


def read_summary(embedder: UltimateKaggleEmbedderV4) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((embedder.output_folder / "summary.json").read_text())
    return found


def read_events(embedder: UltimateKaggleEmbedderV4) -> list[dict[str, Any]]:
    lines = (embedder.output_folder / "events.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


# -- the record of a run, after its export


def test_an_export_adds_to_the_record_of_the_run(generated: UltimateKaggleEmbedderV4) -> None:
    """Specified: "the summary entry for that collection records the mitigation actions and any residual warnings"."""
    run, events = read_summary(generated), read_events(generated)
    stats, telemetry = dict(generated.processing_stats), generated.telemetry.marks()
    paths = generated.export_for_local_qdrant()
    record = read_summary(generated)
    for before, after in zip(run["collections"], record["collections"], strict=True):
        assert before["chunks"]["newly_encoded"] == len(TEXTS if before["collection"] == "docs" else TEXTS[:3])
        for same in ("chunks", "passes", "leases", "mitigations", "models", "telemetry", "warnings"):
            assert after[same] == before[same], same
        assert [each["kind"] for each in after["exports"]] == ["npy", "parquet", "jsonl", "qdrant"]
        assert after["seconds_by_stage"]["export"] > before["seconds_by_stage"]["export"]
    assert read_events(generated)[: len(events)] == events
    assert [event["event"] for event in read_events(generated)].count("RunStarted") == 2
    assert generated.processing_stats == stats
    assert generated.telemetry.marks() == telemetry
    assert json.loads(Path(paths["stats"]).read_text())["total_embeddings_generated"] == len(TEXTS) + 3
    assert generated._summary is not None
    assert generated._summary.model_dump(mode="json") == record


def test_an_export_in_a_later_session_adds_to_the_record_on_disk(
    generated: UltimateKaggleEmbedderV4, make: Make, models: list[str], chunks: Path
) -> None:
    """Specified: "the summary entry for that collection records the mitigation actions"."""
    config = EnsembleConfig(ensemble_models=models, exclusive_mode=True)
    later = make(enable_ensemble=True, ensemble_config=config)
    later.load_chunks_from_processing(chunks)
    later.export_for_local_qdrant()
    (docs, _) = read_summary(later)["collections"]
    assert docs["chunks"]["newly_encoded"] == len(TEXTS)
    assert len(docs["leases"]) == 4


def test_an_export_that_has_to_encode_is_a_run_of_its_own(
    generated: UltimateKaggleEmbedderV4, make: Make, chunks: Path
) -> None:
    """Specified: "records `ensemble_pass_completed` events for each model": of the run that encoded."""
    (chunks / "docs" / "b_chunks.json").write_text('["nine"]')
    passes = len(generated.telemetry.batch_progress)
    generated.load_chunks_from_processing(chunks)
    generated.export_for_local_qdrant()
    (docs, _) = read_summary(generated)["collections"]
    assert (docs["chunks"]["found"], docs["chunks"]["newly_encoded"]) == (9, 1)
    assert len(generated.telemetry.batch_progress) == passes + 2


# -- telemetry in the files of the script


@pytest.fixture
def script_output(tmp_path: Path, models: list[str], chunks: Path) -> Path:
    """What the script has written for an ensemble in exclusive mode, of which one collection is left out."""
    roots = ["--chunks-root", str(chunks), "--output-root", str(tmp_path / "out"), "--model", models[0]]
    ensemble = ["--ensemble-models", ",".join(models), "--exclusive-ensemble", "--no-ensemble", "notes"]
    assert main([*roots, *ensemble]) == 0
    return tmp_path / "out"


@pytest.mark.parametrize("file", ["summary.json", "embedding_summary.json"])
def test_telemetry_of_each_pass_is_in_the_summary(script_output: Path, file: str) -> None:
    """Specified: "MUST emit telemetry describing the pass duration, device, and aggregation weight applied"."""
    docs, notes = json.loads((script_output / file).read_text())["collections"]
    completed = [each for each in docs["telemetry"]["mitigation_events"] if each["type"] == "ensemble_pass_completed"]
    assert [each["model"] for each in completed] == ["tiny-bert", "tiny-mpnet"]
    for event in completed:
        assert event["duration"] > 0
        assert (event["device"], event["aggregation_weight"], event["collection"]) == ("cpu", 0.5, "docs")
    assert kinds(notes["telemetry"]["mitigation_events"]) == ["ensemble_pass_started", "ensemble_pass_completed"]
    assert {each["status"] for each in docs["telemetry"]["cache_events"]} == {"cache_hit"}


def test_telemetry_is_in_the_statistics_of_each_collection(script_output: Path) -> None:
    """Specified: "Persist per-pass mitigation telemetry (`ensemble_pass_completed`, device, duration)"."""
    summary = json.loads((script_output / "summary.json").read_text())
    for collection in summary["collections"]:
        stats = json.loads((script_output / collection["collection"] / "processing_stats.json").read_text())
        assert {key: stats[key] for key in collection["telemetry"]} == collection["telemetry"]
        assert kinds(stats["mitigation_events"]).count("ensemble_pass_completed") == len(collection["passes"])
        assert [each["event_type"] for each in stats["lease_events"]] == ["acquire", "release"] * len(stats["passes"])


# -- companions that are missing


@pytest.fixture
def with_missing(models: list[str]) -> EnsembleConfig:
    return EnsembleConfig(ensemble_models=[models[0], models[1], "bge-m3"], allow_missing_companions=True)


def test_the_class_warns_about_a_missing_companion_and_goes_on(
    make: Make, with_missing: EnsembleConfig, chunks: Path, tmp_path: Path
) -> None:
    """Specified: "warn cleanly when a companion model [...] is missing while ensemble mode is enabled"."""
    with pytest.warns(UserWarning, match="continuing without bge-m3: it is not on this machine"):
        embedder = make(
            enable_ensemble=True, ensemble_config=with_missing, local_files_only=True, hf_cache_dir=tmp_path
        )
    assert list(embedder._initialize_companion_models()) == ["tiny-mpnet"]
    embedder.load_chunks_from_processing(chunks)
    results = embedder.generate_embeddings_kaggle_optimized()
    assert results["models_executed"] == ["tiny-bert", "tiny-mpnet"]
    (missing,) = [each for each in results["mitigation_events"] if each["type"] == "companion_missing"]
    assert (missing["model"], "is not on this machine" in missing["reason"]) == ("bge-m3", True)
    summary = read_summary(embedder)
    assert summary["collections"][0]["fusion"]["weights"] == {"tiny-bert": 0.5, "tiny-mpnet": 0.5}
    (warning,) = summary["warnings"]
    assert warning.startswith("continuing without bge-m3: it is not on this machine")


@pytest.mark.parametrize("hub_is", ["without the model", "dead"])
def test_a_companion_that_cannot_be_downloaded_is_missing_too(
    make: Make, with_missing: EnsembleConfig, hub: HubServer, hub_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specified: "Kaggle runs remain stable under intermittent connectivity"."""
    if hub_is == "dead":
        monkeypatch.setenv("HF_ENDPOINT", dead())
        monkeypatch.setenv("ULTIMATE_EMBEDDER_RETRY_TOTAL_S", "0.2")
    with pytest.warns(
        UserWarning, match=rf"continuing without bge-m3: it cannot be downloaded \(cannot look up {HUB_ID}"
    ):
        embedder = make(enable_ensemble=True, ensemble_config=with_missing)
    assert kinds(embedder.telemetry.mitigation_events) == ["companion_missing"]


def test_a_companion_that_cannot_be_refreshed_is_not_missing(make: Make, hub: HubServer, models: list[str]) -> None:
    """Specified: "only making network requests when the cache is absent or explicitly refreshed"."""
    hub.publish(HUB_ID, Path(models[0]))
    config = EnsembleConfig(
        ensemble_models=[models[0], "bge-m3"], aggregation_method="concat", allow_missing_companions=True
    )
    assert "bge-m3" in make(enable_ensemble=True, ensemble_config=config).models
    hub.faults = [Fault("/api/models/", status=403, times=1000)]
    with pytest.raises(ModelError, match="cannot look up") as caught:
        make(enable_ensemble=True, ensemble_config=config, refresh_cache=True)
    assert not isinstance(caught.value, MissingModelError)


def test_without_the_option_the_class_names_it(make: Make, models: list[str], tmp_path: Path) -> None:
    """Specified: "warn cleanly when a companion model [...] is missing": an error, with the word that allows it."""
    config = EnsembleConfig(ensemble_models=[models[0], "bge-m3"])
    with pytest.raises(MissingModelError, match=r"EnsembleConfig\(allow_missing_companions=True\)") as caught:
        make(enable_ensemble=True, ensemble_config=config, local_files_only=True, hf_cache_dir=tmp_path)
    assert "--allow-missing-companions" not in str(caught.value)


def test_a_primary_that_is_missing_is_an_error_in_any_case(make: Make, models: list[str], tmp_path: Path) -> None:
    """Specified: "warn cleanly when a companion model [...] is missing": only a companion."""
    config = EnsembleConfig(ensemble_models=models, allow_missing_companions=True)
    with pytest.raises(MissingModelError, match="bge-m3") as caught:
        make(
            model_name="bge-m3",
            enable_ensemble=True,
            ensemble_config=config,
            local_files_only=True,
            hf_cache_dir=tmp_path,
        )
    assert "allow_missing_companions" not in str(caught.value)


@pytest.mark.parametrize("allowed", [True, False])
def test_the_script_goes_on_without_a_companion_if_that_is_allowed(
    tmp_path: Path, models: list[str], chunks: Path, allowed: bool
) -> None:
    """Specified: "warn cleanly when a companion model [...] is missing while ensemble mode is enabled"."""
    roots = ["--chunks-root", str(chunks), "--output-root", str(tmp_path / "out"), "--model", models[0]]
    ensemble = ["--enable-ensemble", "--ensemble-models", f"{models[0]},{models[1]},bge-m3", "--offline"]
    option = ["--allow-missing-companions"] if allowed else []
    code = main([*roots, *ensemble, "--cache-dir", str(tmp_path / "cache"), *option])
    summary = json.loads((tmp_path / "out" / "embedding_summary.json").read_text())
    if not allowed:
        assert (code, "--allow-missing-companions" in summary["error"]) == (1, True)
        return
    assert code == 0
    (warning,) = summary["warnings"]
    assert warning.startswith("continuing without bge-m3")
    for collection in summary["collections"]:
        assert collection["fusion"]["weights"] == {"tiny-bert": 0.5, "tiny-mpnet": 0.5}
        assert "companion_missing" in kinds(collection["telemetry"]["mitigation_events"])


# -- the lines that the validation plan waits for

NOTEBOOK = """
import sys
from processor.ultimate_embedder.config import EnsembleConfig, KaggleExportConfig
from processor.ultimate_embedder.core import UltimateKaggleEmbedderV4
models = sys.argv[3:]
embedder = UltimateKaggleEmbedderV4(
    models[0],
    export_config=KaggleExportConfig(working_dir=sys.argv[2]),
    enable_ensemble=True,
    ensemble_config=EnsembleConfig(ensemble_models=models, exclusive_mode=True),
)
embedder.load_chunks_from_processing(sys.argv[1])
embedder.generate_embeddings_kaggle_optimized()
"""


@pytest.mark.parametrize("setup", [slow(""), "import logging; logging.basicConfig(level=logging.INFO)\n"])
def test_the_lines_of_the_plan_appear_once_in_a_notebook(
    setup: str, chunks: Path, tmp_path: Path, models: list[str]
) -> None:
    """Specified: "Exclusive ensemble mode: staging primary model to CPU", "Exclusive ensemble mode detected"."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", setup + NOTEBOOK, str(chunks), str(tmp_path), *models]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line in ("Exclusive ensemble mode: staging primary model to CPU", "Exclusive ensemble mode detected"):
        assert (done.stdout + done.stderr).count(line) == 1


def test_a_line_goes_to_the_logger_where_one_takes_it(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Specified: "check logs for "Exclusive ensemble mode detected""."""
    logger = logging.getLogger("ultimate_embedder.compat.test")
    with caplog.at_level(logging.INFO, logger.name):
        announce(logger, "a line")
    assert caplog.messages == ["a line"]
    assert capsys.readouterr().err == ""


# -- the names in brackets


def test_memory_is_probed_on_cards_only(generated: UltimateKaggleEmbedderV4) -> None:
    """Specified: "reports free/total memory per device": a CPU is none of the devices that are meant."""
    assert generated._collect_gpu_snapshots() == {}


def test_a_mitigation_can_be_recorded(generated: UltimateKaggleEmbedderV4) -> None:
    """Specified: "Record mitigation telemetry so summaries can show [...]" (`_record_mitigation`)."""
    generated._record_mitigation("companion_paused", model="tiny-mpnet")
    event = generated.telemetry.mitigation_events[-1]
    assert (event["type"], event["model"], event["timestamp"] > 0) == ("companion_paused", "tiny-mpnet", True)


def test_a_snapshot_is_where_the_cache_has_it(make: Make, hub: HubServer, models: list[str]) -> None:
    """Specified: "retries that prefer local artifacts before hitting the network" (`_ensure_model_snapshot`)."""
    hub.publish(HUB_ID, Path(models[0]))
    embedder = make()
    fetched = embedder._ensure_model_snapshot("bge-m3")
    hub.requests.clear()
    assert embedder._ensure_model_snapshot(HUB_ID) == fetched
    assert hub.requests == []
    assert (fetched / "model.safetensors").is_file()
    assert embedder._ensure_model_snapshot() == Path(models[0])
    assert [event["status"] for event in embedder.cache_events] == ["cache_hit", "downloaded", "cache_hit"]
    assert embedder.cache_events is embedder.telemetry.cache_events


def test_the_arguments_load_the_model_from_disk(generated: UltimateKaggleEmbedderV4) -> None:
    """Specified: "request `local_files_only` assets when cached" (`_build_sentence_transformer_kwargs`)."""
    arguments = generated._build_sentence_transformer_kwargs("tiny-mpnet")
    assert (arguments["local_files_only"], arguments["trust_remote_code"]) == (True, False)
    vectors = SentenceTransformer(**arguments).encode(generated.chunk_texts, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, generated.embeddings_by_model["tiny-mpnet"], atol=1e-4)


def test_companions_are_initialised_on_the_host(generated: UltimateKaggleEmbedderV4) -> None:
    """Specified: "surfaces which models were loaded from cache vs downloaded" (`_initialize_companion_models`)."""
    assert generated._initialize_companion_models() == generated.companion_models
    assert [event["status"] for event in generated.cache_events[:2]] == ["cache_hit"] * 2


def test_checkpointing_is_not_switched_on_and_the_telemetry_says_why(generated: UltimateKaggleEmbedderV4) -> None:
    """Specified: "Gradient checkpoint telemetry & auto-enable via `_maybe_enable_transformer_checkpointing`"."""
    assert generated._maybe_enable_transformer_checkpointing() is False
    event = generated.telemetry.mitigation_events[-1]
    assert (event["type"], event["enabled"]) == ("gradient_checkpointing_not_enabled", False)
    assert "no activations" in event["reason"]


def test_an_exclusive_run_can_be_asked_for(make: Make, models: list[str], chunks: Path) -> None:
    """Specified: "Verify that `run_exclusive_ensemble` is being called"."""
    embedder = make(enable_ensemble=True, ensemble_config=EnsembleConfig(ensemble_models=models))
    with pytest.raises(UsageError, match="load_chunks_from_processing"):
        embedder.run_exclusive_ensemble()
    embedder.load_chunks_from_processing(chunks)
    results = embedder.run_exclusive_ensemble()
    assert results["ensemble_mode"] == "exclusive"
    assert [event["event_type"] for event in results["lease_events"]] == ["acquire", "release"] * 4
