"""`scripts/embed_collections_v5.py`: its options, its exit code, and a summary in every case."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WriteChunks
from tests.support.hub_server import HubServer
from ultimate_embedder.compat import script as script_module
from ultimate_embedder.compat.archive import zip_output
from ultimate_embedder.compat.script import main
from ultimate_embedder.config import old_environment
from ultimate_embedder.output import Output

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = [
    *("--chunks-root", "--output-root", "--collections", "--model", "--enable-ensemble", "--ensemble-models"),
    *("--ensemble-mode", "--exclusive-ensemble", "--sequential-data-parallel", "--sequential-devices"),
    *("--skip-existing", "--summary", "--zip-output", "--matryoshka-dim", "--force-cpu", "--no-ensemble"),
    *("--no-sequential-data-parallel", "--allow-missing-companions", "--offline", "--refresh-cache", "--cache-dir"),
]
STATS_KEYS = {"collection", "ensemble_mode", "chunks", "passes", "lease_events", "mitigation_events", "cache_events"}
HUB_ID = "BAAI/bge-m3"


@dataclass(frozen=True)
class Done:
    """A run of the script that has ended."""

    code: int
    out: str
    err: str
    summary_path: Path

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.summary_path.read_text())
        return found

    @property
    def statuses(self) -> dict[str, str]:
        return {each["collection"]: each["status"] for each in self.summary["collections"]}

    def collection(self, name: str) -> dict[str, Any]:
        (found,) = [each for each in self.summary["collections"] if each["collection"] == name]
        return dict(found)

    def models(self, name: str) -> list[str]:
        return [each["model"] for each in self.collection(name)["models"]]


Script = Callable[..., Done]


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    """Two collections: code and docs."""
    write_chunks(["one", "two", "three"], "docs")
    return write_chunks(["def f(): pass"], "code")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def script(tmp_path: Path, output: Path, models: list[str], capsys: pytest.CaptureFixture[str]) -> Script:
    """Run the script in this process, with the first model unless another is named."""

    def run(*options: object, model: str = models[0]) -> Done:
        roots = ["--chunks-root", tmp_path / "chunks", "--output-root", output, "--model", model]
        try:
            code = main([str(word) for word in [*roots, *options]])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Done(code, *capsys.readouterr(), output / "embedding_summary.json")

    return run


@pytest.fixture
def both(models: list[str]) -> tuple[str, ...]:
    """The options of an ensemble of both models."""
    return ("--enable-ensemble", "--ensemble-models", ",".join(models))


# -- options


@pytest.mark.parametrize("option", OPTIONS)
def test_help_lists_every_option(script: Script, option: str) -> None:
    done = script("--help")
    assert done.code == 0
    assert option in done.out.partition("options:")[2].split()


@pytest.mark.usefixtures("chunks")
def test_all_options_can_be_given_at_once(script: Script, both: tuple[str, ...], tmp_path: Path) -> None:
    done = script(
        *both,
        *("--collections", "docs", "code", "--ensemble-mode", "sequential", "--exclusive-ensemble"),
        *("--sequential-data-parallel", "--sequential-devices", "cuda:1,cuda:0,cpu", "--skip-existing"),
        *("--zip-output", "--matryoshka-dim", 16, "--force-cpu", "docs", "--no-ensemble", "code"),
        *("--summary", "embedding_summary.json", "--offline", "--cache-dir", tmp_path / "cache"),
    )
    assert (done.code, done.statuses) == (0, {"code": "completed", "docs": "completed"})
    options = done.summary["options"]
    assert (options["mode"], options["dim"], options["skip_existing"]) == ("exclusive", 16, True)
    assert options["device_order"] == ["cuda:1", "cuda:0", "cpu"]
    assert (options["force_cpu"], options["no_ensemble"]) == (["docs"], ["code"])
    assert (options["hub"]["offline"], options["hub"]["cache_dir"]) == (True, str(tmp_path / "cache"))


def test_folders_have_their_old_names(tmp_path: Path, models: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Chunked" / "docs").mkdir(parents=True)
    (tmp_path / "Chunked" / "docs" / "a_chunks.json").write_text('["one"]')
    assert main(["--model", models[0]]) == 0
    assert (tmp_path / "Embeddings" / "embedding_summary.json").is_file()


@pytest.mark.parametrize(
    ("wrong", "meant"), [("--summry", "--summary"), ("--exclusive-ensembl", "--exclusive-ensemble")]
)
def test_a_misspelled_option_gets_a_suggestion(script: Script, wrong: str, meant: str) -> None:
    done = script(wrong)
    assert done.code == 2
    assert f"Did you mean {meant}?" in done.err


# -- exit code and summary


@pytest.mark.usefixtures("chunks")
def test_complete_collections_are_a_success(script: Script, output: Path) -> None:
    done = script()
    assert (done.code, done.statuses) == (0, {"code": "completed", "docs": "completed"})
    docs = done.collection("docs")
    assert (docs["chunks"]["embedded"], docs["target_qdrant_collection"]) == (3, "docs__tiny-bert")
    assert {"npy", "parquet", "qdrant"} <= {export["kind"] for export in docs["exports"]}
    assert all(Path(export["path"]).exists() for export in docs["exports"])
    assert done.summary["ensemble_mode"] == "disabled"
    assert str(output / "embedding_summary.json") in done.out


@pytest.mark.usefixtures("chunks")
def test_only_the_collections_that_are_named_are_embedded(script: Script) -> None:
    done = script("--collections", "docs")
    assert (done.code, done.statuses) == (0, {"docs": "completed"})


@pytest.mark.usefixtures("chunks")
def test_a_collection_that_is_missing_is_no_success_and_the_others_are_done(script: Script) -> None:
    done = script("--collections", "docs", "dosc")
    assert (done.code, done.statuses) == (1, {"docs": "completed", "dosc": "skipped_missing"})


@pytest.mark.parametrize(("records", "status"), [([], "skipped_no_chunks"), (["  "], "failed")])
def test_a_collection_without_anything_usable_is_no_success(
    script: Script, chunks: Path, write_chunks: WriteChunks, records: list[str], status: str
) -> None:
    write_chunks(records, "odd")
    done = script()
    assert (done.code, done.statuses) == (1, {"code": "completed", "docs": "completed", "odd": status})


@pytest.mark.usefixtures("chunks")
def test_collections_that_were_skipped_on_request_are_a_success(script: Script) -> None:
    script("--collections", "docs")
    done = script("--skip-existing")
    assert (done.code, done.statuses) == (0, {"code": "completed", "docs": "skipped_existing"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "bge-m3", "--offline"), "bge-m3 is not on this machine"),
        (("--model", "no-such-model"), "no-such-model is neither a known model nor a folder"),
        (
            ("--ensemble-mode", "sequental"),
            "--ensemble-mode sequental: not one of",
        ),
        (("--matryoshka-dim", 0), "--matryoshka-dim 0: not a number of dimensions"),
        (("--matryoshka-dim", "many"), "--matryoshka-dim many: not a number of dimensions"),
        (("--matryoshka-dim", 1000), "vectors of tiny-bert have 32 dimensions"),
        (("--offline", "--refresh-cache"), "contradict each other"),
        (("--enable-ensemble", "--ensemble-models", "bge-m3"), "bge-m3"),
        (("--chunks-root", "/no/such/folder"), "/no/such/folder does not exist"),
    ],
)
@pytest.mark.usefixtures("chunks")
def test_the_summary_is_written_when_the_run_cannot_be_done(
    script: Script, options: tuple[object, ...], words: str, tmp_path: Path
) -> None:
    done = script(*options, "--cache-dir", tmp_path / "cache")
    assert done.code == 1
    reasons = [done.summary["error"], *(each["error"] for each in done.summary["collections"])]
    assert any(words in reason for reason in reasons if reason)
    assert words in done.err + done.out


def test_the_summary_is_written_when_nothing_is_found(script: Script, tmp_path: Path) -> None:
    (tmp_path / "chunks").mkdir()
    done = script()
    assert (done.code, done.statuses) == (1, {})
    assert done.summary["error"].startswith(f"no chunk files below {tmp_path / 'chunks'}: looked for ")


@pytest.mark.usefixtures("chunks")
def test_what_is_known_is_in_the_summary_of_a_run_that_cannot_be_done(script: Script, tmp_path: Path) -> None:
    done = script("--collections", "docs", "dosc", "--offline", "--cache-dir", tmp_path / "cache", model="bge-m3")
    assert "bge-m3 is not on this machine" in done.summary["error"]
    assert done.summary["options"]["collections"] == ["docs", "dosc"]
    assert done.statuses == {"dosc": "skipped_missing"}
    assert done.summary["versions"]["python"]


@pytest.mark.usefixtures("chunks")
def test_the_summary_can_be_at_a_path_or_have_another_name(script: Script, tmp_path: Path, output: Path) -> None:
    script("--summary", tmp_path / "deep" / "er" / "mine.json")
    assert json.loads((tmp_path / "deep" / "er" / "mine.json").read_text())["collections"]
    assert (output / "summary.json").read_bytes() == (tmp_path / "deep" / "er" / "mine.json").read_bytes()
    script("--summary", "other.json")
    assert (output / "other.json").is_file()
    assert not (output / "embedding_summary.json").exists()


@pytest.mark.usefixtures("chunks")
def test_a_summary_that_cannot_be_written_is_an_error_in_words(script: Script, output: Path) -> None:
    output.write_text("a file, where a folder is needed")
    done = script()
    assert done.code == 1
    assert "is a file. Give a folder" in done.err
    assert f"the summary cannot be written to {output / 'embedding_summary.json'}" in done.err


@pytest.mark.usefixtures("chunks")
def test_statistics_lie_beside_the_exports_of_each_collection(
    script: Script, both: tuple[str, ...], output: Path
) -> None:
    script(*both, "--exclusive-ensemble")
    stats = json.loads((output / "docs" / "processing_stats.json").read_text())
    assert set(stats) == STATS_KEYS
    assert (stats["collection"], stats["ensemble_mode"]) == ("docs", "exclusive")
    assert [event["event_type"] for event in stats["lease_events"]] == ["acquire", "release"] * 2
    assert [each["model"] for each in stats["passes"]] == ["tiny-bert", "tiny-mpnet"]


@pytest.mark.usefixtures("chunks")
def test_the_output_can_be_packed(script: Script, tmp_path: Path) -> None:
    done = script("--zip-output", "--collections", "docs")
    assert f"zip: {tmp_path / 'out.zip'}" in done.out
    with zipfile.ZipFile(tmp_path / "out.zip") as packed:
        names = set(packed.namelist())
        packed_summary = json.loads(packed.read("embedding_summary.json"))
    assert {"embedding_summary.json", "docs/embeddings.npy", "docs/processing_stats.json"} <= names
    assert packed_summary == done.summary


@pytest.mark.usefixtures("chunks")
def test_the_pack_has_neither_the_lock_nor_temporary_files(script: Script, tmp_path: Path, output: Path) -> None:
    script("--collections", "docs")
    (output / ".ultimate-embedder.lock").touch()
    for name in (".chunks.arrow.partial", ".qdrant.1234abcd.partial/segment", "store/tokens-1234/ids"):
        (output / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (output / "docs" / name).touch()
    with zipfile.ZipFile(zip_output(Output(output))) as packed:
        names = packed.namelist()
    assert {"summary.json", "events.jsonl", "docs/chunks.parquet", "docs/store/exports.json"} <= set(names)
    assert not [name for name in names if "partial" in name or "tokens-" in name or "lock" in name]
    assert not list(tmp_path.glob(".*.partial"))


# -- ensembles and devices


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("parallel", "simultaneous"),
        ("sequential", "sequential"),
        ("auto", "exclusive"),  # on a CPU, models at the same time would only share its cores
        ("disabled", "disabled"),
    ],
)
@pytest.mark.usefixtures("chunks")
def test_the_mode_of_an_ensemble_is_chosen_by_a_word(
    script: Script, both: tuple[str, ...], word: str, mode: str
) -> None:
    done = script(*both, "--ensemble-mode", word, "--collections", "code")
    assert (done.code, done.summary["ensemble_mode"]) == (0, mode)
    assert done.models("code") == (["tiny-bert"] if word == "disabled" else ["tiny-bert", "tiny-mpnet"])


@pytest.mark.usefixtures("chunks")
def test_vectors_of_an_ensemble_are_averaged(script: Script, both: tuple[str, ...]) -> None:
    done = script(*both, "--collections", "docs")
    fusion = done.collection("docs")["fusion"]
    assert (fusion["method"], fusion["vectors"]) == ("weighted_average", [{"name": "", "dim": 32, "kind": "dense"}])
    assert fusion["weights"] == {"tiny-bert": 0.5, "tiny-mpnet": 0.5}


@pytest.mark.usefixtures("chunks")
def test_the_ensemble_can_be_left_out_for_some_collections(script: Script, both: tuple[str, ...]) -> None:
    done = script(*both, "--exclusive-ensemble", "--no-ensemble", "code")
    assert done.code == 0
    assert (done.models("code"), done.models("docs")) == (["tiny-bert"], ["tiny-bert", "tiny-mpnet"])


@pytest.mark.usefixtures("chunks")
def test_without_names_no_collection_uses_a_gpu(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "cuda")
    done = script("--force-cpu")
    assert (done.code, done.summary["options"]["devices"]) == (0, "cpu")


@pytest.mark.parametrize(
    ("variable", "value", "option", "expected"),
    [
        ("EMBEDDER_SEQUENTIAL_ENSEMBLE", "1", "mode", "sequential"),
        ("EMBEDDER_EXCLUSIVE_ENSEMBLE", "true", "mode", "exclusive"),
        ("EMBEDDER_SEQUENTIAL_DEVICES", "cuda:1,cpu", "device_order", ["cuda:1", "cpu"]),
        ("EMBEDDER_FORCE_CPU", "1", "devices", "cpu"),
    ],
)
@pytest.mark.usefixtures("chunks")
def test_a_variable_does_what_an_option_does(
    script: Script,
    both: tuple[str, ...],
    variable: str,
    value: str,
    option: str,
    expected: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, value)
    if variable == "EMBEDDER_FORCE_CPU":
        monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "cuda")
    done = script(*both, "--collections", "code")
    assert (done.code, done.summary["options"][option]) == (0, expected)


@pytest.mark.parametrize(("value", "parallelism"), [("1", "replicas"), ("0", "none"), (None, "replicas")])
@pytest.mark.usefixtures("chunks")
def test_models_that_take_turns_use_all_devices_unless_a_variable_says_no(
    script: Script, both: tuple[str, ...], value: str | None, parallelism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("EMBEDDER_SEQUENTIAL_DATA_PARALLEL", value)
    done = script(*both, "--ensemble-mode", "sequential", "--collections", "code")
    assert done.summary["options"]["parallelism"] == parallelism


# -- the command line goes before the environment: "environment/CLI overrides to toggle sequential execution"


@pytest.mark.parametrize(
    ("variables", "options", "option", "expected"),
    [
        ({"SEQUENTIAL_ENSEMBLE": "1"}, ("--ensemble-mode", "parallel"), "mode", "simultaneous"),
        ({"SEQUENTIAL_ENSEMBLE": "1"}, ("--ensemble-mode", "auto"), "mode", "auto"),
        ({"SEQUENTIAL_ENSEMBLE": "1"}, ("--ensemble-mode", "disabled"), "mode", "single"),
        ({"SEQUENTIAL_ENSEMBLE": "1"}, ("--exclusive-ensemble",), "mode", "exclusive"),
        ({"EXCLUSIVE_ENSEMBLE": "1"}, ("--ensemble-mode", "parallel"), "mode", "simultaneous"),
        ({"EXCLUSIVE_ENSEMBLE": "1"}, ("--ensemble-mode", "sequential"), "mode", "sequential"),
        ({"EXCLUSIVE_ENSEMBLE": "1"}, ("--ensemble-mode", "disabled"), "mode", "single"),
        ({"SEQUENTIAL_DEVICES": "0"}, ("--sequential-devices", "1,cpu"), "device_order", ["1", "cpu"]),
        (
            {"SEQUENTIAL_DATA_PARALLEL": "0"},
            ("--ensemble-mode", "sequential", "--sequential-data-parallel"),
            "parallelism",
            "replicas",
        ),
        (
            {"SEQUENTIAL_DATA_PARALLEL": "1"},
            ("--ensemble-mode", "sequential", "--no-sequential-data-parallel"),
            "parallelism",
            "none",
        ),
        ({"FORCE_CPU": "1"}, ("--force-cpu", "code"), "force_cpu", ["code"]),
        ({"FORCE_CPU": "1"}, ("--force-cpu", "code"), "devices", None),
        ({"FORCE_CPU": "1"}, (), "devices", "cpu"),
        ({"REFRESH_CACHE": "1"}, ("--offline",), "refresh_cache", False),
    ],
)
def test_an_explicit_flag_beats_a_variable(
    variables: dict[str, str], options: tuple[str, ...], option: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"EMBEDDER_{name}", value)
    given = script_module._parser().parse_args(["--enable-ensemble", *options])
    found = script_module._options(given, old_environment())[option]
    assert (list(found) if isinstance(found, tuple) else found) == expected


@pytest.mark.usefixtures("chunks")
def test_a_mode_without_an_ensemble_has_no_effect_and_a_warning_says_so(script: Script) -> None:
    done = script("--ensemble-mode", "sequential", "--collections", "code")
    warning = "--ensemble-mode sequential has no effect without --enable-ensemble: one model is used."
    assert done.code == 0
    assert done.summary["warnings"] == [warning]


@pytest.mark.parametrize("word", ["parallel", "disabled"])
@pytest.mark.usefixtures("chunks")
def test_a_mode_with_an_ensemble_or_without_meaning_does_not_warn(
    script: Script, both: tuple[str, ...], word: str
) -> None:
    options = both if word == "parallel" else ()
    assert script(*options, "--ensemble-mode", word, "--collections", "code").summary["warnings"] == []


# -- models from a hub


def source(done: Done) -> str:
    return str(done.collection("docs")["models"][0]["source"])


@pytest.mark.usefixtures("chunks")
def test_a_model_is_fetched_then_cached_and_refreshed_on_request(
    script: Script, hub: HubServer, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish(HUB_ID, Path(models[0]))
    assert source(script(model="bge-m3")) == "download"
    hub.requests.clear()
    assert source(script("--offline", model="bge-m3")) == source(script(model="bge-m3")) == "cache"
    assert hub.requests == []
    assert source(script("--refresh-cache", model="bge-m3")) == "refresh"
    monkeypatch.setenv("EMBEDDER_REFRESH_CACHE", "1")
    assert source(script(model="bge-m3")) == "refresh"


@pytest.mark.usefixtures("chunks")
def test_the_variables_of_the_hub_are_heeded(
    script: Script, hub: HubServer, models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish(HUB_ID, Path(models[0]))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert script(model="bge-m3").code == 1
    assert hub.requests == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "elsewhere"))
    assert script(model="bge-m3").code == 0
    assert list((tmp_path / "elsewhere" / "hub").glob("models--BAAI--bge-m3/snapshots/*/model.safetensors"))


# -- as it is started


@pytest.mark.slow
def test_a_bare_clone_is_enough(chunks: Path, output: Path, models: list[str], tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for name in ("scripts", "src"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    command = [sys.executable, "-S", str(clone / "scripts" / "embed_collections_v5.py")]  # -S: no editable install
    roots = ["--chunks-root", str(chunks), "--output-root", str(output), "--model", models[0]]
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    done = subprocess.run(
        [*command, *roots], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads((output / "embedding_summary.json").read_text())
    assert {each["status"] for each in summary["collections"]} == {"completed"}
