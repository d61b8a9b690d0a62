from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Result, Run
from tests.conftest import WriteChunks
from tests.support.slow import slow
from ultimate_embedder._version import __version__
from ultimate_embedder.models import MODELS

EMBED_OPTIONS = [
    *("--output", "--collections", "--models", "--mode", "--devices", "--max-tokens", "--dim", "--precision"),
    *("--export", "--summary", "--dry-run", "--quiet", "--json"),
]


@pytest.fixture
def chunks(write_chunks: WriteChunks) -> Path:
    return write_chunks(["one", "two"])


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False)


def loaded_modules(code: str) -> set[str]:
    """Which modules are loaded after `code`, in a fresh interpreter."""
    done = python("-c", f"import sys\n{code}\nprint(*sorted(sys.modules), file=sys.stderr)")
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("command", ["embed", "upload", "models"])
def test_help_lists_the_commands(run: Run, command: str) -> None:
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert f"\n  {command} " in out


@pytest.mark.parametrize("option", EMBED_OPTIONS)
def test_help_of_embed_lists_its_options(run: Run, option: str) -> None:
    code, out, _ = run("embed", "--help")
    assert code == 0
    assert re.search(rf"\n  (-\w, )?{option}\b", out)


@pytest.mark.parametrize("option", ["--url", "--collection", "--api-key-env", "-q, --quiet"])
def test_help_of_upload_lists_its_options(run: Run, option: str) -> None:
    code, out, _ = run("upload", "--help")
    assert code == 0
    assert re.search(rf"\n  (-\w, )?{option}\b", out)


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version") == Result(0, f"ultimate-embedder {__version__}\n", "")


def test_the_package_runs_as_a_module() -> None:
    done = python("-m", "ultimate_embedder", "--version")
    assert (done.returncode, done.stdout) == (0, f"ultimate-embedder {__version__}\n")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("--precison", "--precision"), ("--collection", "--collections"), ("--max_tokens", "--max-tokens")],
)
def test_a_misspelled_option_is_suggested(run: Run, chunks: Path, tmp_path: Path, wrong: str, meant: str) -> None:
    code, out, err = run("embed", chunks, "--output", tmp_path / "out", wrong, "x")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: unrecognized arguments: {wrong}")
    assert f"Did you mean {meant}?" in err
    assert not (tmp_path / "out").exists()


def test_a_misspelled_option_written_with_an_equals_sign_is_suggested(run: Run, chunks: Path, tmp_path: Path) -> None:
    _, _, err = run("embed", chunks, "--output", tmp_path / "out", "--precison=fp16")
    assert "Did you mean --precision?" in err


def test_a_misspelled_required_option_is_suggested(run: Run, chunks: Path, tmp_path: Path) -> None:
    code, _, err = run("embed", chunks, "--ouput", tmp_path / "out")
    assert code == 2
    assert "Did you mean --output?" in err


def test_an_option_cannot_be_shortened(run: Run, chunks: Path, tmp_path: Path) -> None:
    code, _, err = run("embed", chunks, "--output", tmp_path / "out", "--prec", "fp16")
    assert code == 2
    assert "unrecognized arguments: --prec" in err


@pytest.mark.parametrize(
    ("option", "word", "message"),
    [
        (
            "--mode",
            "sequental",
            "not one of auto, single, simultaneous, sequential, exclusive. Did you mean sequential?",
        ),
        ("--export", "npz", "not one of npy, parquet, jsonl, qdrant. Did you mean npy?"),
        ("--precision", "int4", "not one of auto, fp32, fp16, bf16, int8. Did you mean int8?"),
        ("--max-tokens", "3", "must be at least 8."),
        ("--dim", "0", "must be at least 1."),
    ],
)
def test_a_wrong_word_is_named_with_the_valid_ones(
    run: Run, chunks: Path, tmp_path: Path, option: str, word: str, message: str
) -> None:
    code, out, err = run("embed", chunks, "--output", tmp_path / "out", option, word)
    assert (code, out, err) == (2, "", f"error: {option} {word}: {message}\n")
    assert not (tmp_path / "out").exists()


def test_a_number_in_words_is_refused(run: Run, chunks: Path, tmp_path: Path) -> None:
    code, _, err = run("embed", chunks, "--output", tmp_path / "out", "--max-tokens", "many")
    assert code == 2
    assert err.startswith("error: --max-tokens: 'many' is not a whole number.\n")


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["upload"], "DIR"),
        (["models", "show"], "KEY_OR_PATH"),
    ],
)
def test_what_is_missing_is_named(run: Run, arguments: list[str], missing: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: the following arguments are required: {missing}.\n")


@pytest.mark.parametrize(
    ("arguments", "missing"), [([], "CHUNKS and --output"), (["-o", "out"], "CHUNKS"), (["chunks"], "--output")]
)
def test_what_embed_needs_is_named_with_an_example(run: Run, arguments: list[str], missing: str) -> None:
    example = f"ultimate-embedder embed chunks/ -o out/ (or {missing} in --config)"
    assert run("embed", *arguments) == Result(2, "", f"error: embed needs {missing}: {example}.\n")


@pytest.mark.parametrize("arguments", [[], ["models"]])
def test_without_a_command_the_help_is_shown(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err == run(*arguments, "--help").out


@pytest.mark.parametrize("words", [["embed"], ["models"], ["models", "pull"], []])
def test_help_is_a_command_too(run: Run, words: list[str]) -> None:
    assert run("help", *words) == run(*words, "--help")


COMMAND_LINES = [["embed"], ["upload"], ["status"], ["verify"], ["models"], ["doctor"]]
COMMAND_LINES += [["models", action] for action in ("list", "pull", "verify", "manifest", "show")]


@pytest.mark.parametrize("words", [[], *COMMAND_LINES], ids=" ".join)
def test_every_help_has_a_short_usage_and_examples_and_fits_into_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(*words, "--help")
    assert code == 0
    usage, blank, *lines = out.splitlines()
    assert usage.startswith(" ".join(["usage: ultimate-embedder", *words]))
    assert usage.endswith("[options]")
    assert blank == ""
    examples = lines[lines.index("examples:") + 1 :]
    assert examples[0].startswith(" ".join(["  ultimate-embedder", *words]))
    assert max(map(len, out.splitlines())) <= 80


def test_a_chunk_folder_that_is_not_there_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    code, _, err = run("embed", tmp_path / "nowhere", "--output", tmp_path / "out")
    assert code == 2
    way_out = "Give a chunk file, or the folder that holds your chunk files."
    assert err == f"error: {tmp_path / 'nowhere'} does not exist. {way_out}\n"


def test_upload_without_an_address_says_how_to_give_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QDRANT_URL", raising=False)
    code, _, err = run("upload", tmp_path)
    assert code == 2
    assert err == (
        "error: --url is missing, and QDRANT_URL is not set. Write --url http://localhost:6333, for example.\n"
    )


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_upload_needs_a_folder(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    code, _, err = run("upload", tmp_path / name, "--url", "http://localhost:1")
    assert code == 2
    assert err == f"error: {tmp_path / name} is not a folder. Give the --output of an earlier embed.\n"


def test_upload_names_an_api_key_variable_that_is_not_set(run: Run, tmp_path: Path) -> None:
    code, _, err = run("upload", tmp_path, "--url", "http://localhost:1", "--api-key-env", "NO_SUCH_VARIABLE")
    assert (code, err) == (2, "error: --api-key-env NO_SUCH_VARIABLE: that variable is not set.\n")


def test_models_list_has_a_line_for_each_model(run: Run) -> None:
    code, out, err = run("models", "list")
    assert (code, err) == (0, "")
    heading, *lines = out.splitlines()
    assert heading.split() == ["key", "kind", "dims", "tokens", "remote", "code", "location", "size", "note"]
    assert [line.split()[0] for line in lines] == [spec.key for spec in MODELS]


@pytest.mark.parametrize("name", ["bge-m3", "BAAI/bge-m3"])
def test_models_show_tells_everything_about_one(run: Run, name: str) -> None:
    code, out, err = run("models", "show", name)
    assert (code, err) == (0, "")
    for line in (
        "hub id           BAAI/bge-m3",
        "dims             1024",
        "token limit      8192",
        "remote code      no",
    ):
        assert line in out.splitlines()


def test_models_show_gives_prompts_on_one_line(run: Run) -> None:
    _, out, _ = run("models", "show", "jina-code-embeddings-1.5b")
    assert r"document prompt  'Candidate code snippet:\n'" in out.splitlines()


def test_models_show_of_an_unknown_model_suggests_one(run: Run) -> None:
    code, out, err = run("models", "show", "bgem3")
    assert (code, out) == (2, "")
    assert err.startswith("error: bgem3 is neither a known model nor a folder. Did you mean bge-m3? ")


def test_an_empty_folder_fails_and_says_how_chunk_files_are_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, out, _ = run("embed", tmp_path / "empty", "--output", tmp_path / "out", "--quiet")
    assert code == 1
    error = (
        f"no chunk files below {tmp_path / 'empty'}: looked for *.json, *.jsonl, *.ndjson, *.csv, *.tsv, *.parquet, "
        "*.arrow or *.feather; found no files"
    )
    assert out == f"{error}\nsummary: {tmp_path / 'out' / 'summary.json'}\n"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["collections"], summary["error"]) == ([], error)


def test_the_summary_can_be_printed_as_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, out, _ = run("embed", tmp_path / "empty", "--output", tmp_path / "out", "--json")
    assert code == 1
    assert json.loads(out) == json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))


def test_the_summary_goes_where_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run("embed", tmp_path / "empty", "--output", tmp_path / "out", "--summary", tmp_path / "deep" / "s.json")
    copied = (tmp_path / "deep" / "s.json").read_bytes()
    assert (tmp_path / "out" / "summary.json").read_bytes() == copied


def test_a_missing_collection_fails_and_suggests_one(run: Run, chunks: Path, tmp_path: Path) -> None:
    code, out, _ = run("embed", chunks, "--output", tmp_path / "out", "--collections", "dogs", "--quiet")
    assert code == 1
    assert "skipped_missing" in out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["warnings"] == ["collection dogs does not exist. Did you mean docs?"]


def test_a_dry_run_counts_and_writes_nothing(run: Run, write_chunks: WriteChunks, tmp_path: Path) -> None:
    chunks = write_chunks(["one", "", "two"])
    code, out, _ = run("embed", chunks, "--output", tmp_path / "out", "--dry-run", "--quiet")
    assert code == 0
    assert out.splitlines()[1].split()[:6] == ["docs", "planned", "3", "0", "0", "1"]
    assert "docs rejected a_chunks.json record 1: the text is empty" in out
    assert not (tmp_path / "out").exists()


def test_a_record_that_cannot_be_named_in_utf_8_does_not_fail_the_others(run: Run, tmp_path: Path) -> None:
    (tmp_path / "chunks" / "docs").mkdir(parents=True)
    (tmp_path / "chunks" / "docs" / "a_chunks.json").write_bytes(b'[{"caf\xe9": "x"}, "two"]')
    code, out, _ = run("embed", tmp_path / "chunks", "--output", tmp_path / "out", "--quiet", "--export", "npy")
    assert (code, out.splitlines()[1].split()[:3]) == (0, ["docs", "completed", "2"])


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
def test_a_reader_that_goes_away_does_not_change_the_exit_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        command = [sys.executable, "-m", "ultimate_embedder", "models", "list"]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes")
@pytest.mark.parametrize("lost", ["stdout", slow("stderr"), slow("closed")])
def test_a_reader_that_goes_away_does_not_stop_the_work(chunks: Path, tmp_path: Path, lost: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ["embed", str(chunks), "--output", str(tmp_path / "out"), "--devices", "cpu", "--export", "npy"]
    command = [sys.executable, "-m", "ultimate_embedder", *words]
    if lost == "closed":
        command = ["sh", "-c", '"$@" 2>&-', "sh", *command]
    with os.fdopen(writing, "w") as closed:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, lost: closed}
        streams.pop("closed", None)
        done = subprocess.run(command, check=False, **streams)  # type: ignore[call-overload]
    assert done.returncode == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["collections"][0]["status"] == "completed"


def test_half_precision_on_a_cpu_is_said_to_be_fp32(run: Run, chunks: Path, tmp_path: Path) -> None:
    words = (
        "embed",
        chunks,
        "--output",
        tmp_path / "out",
        "--devices",
        "cpu",
        "--export",
        "npy",
        "--precision",
        "fp16",
    )
    code, _, err = run(*words)
    assert (code, "warning: --precision fp16: a CPU computes in fp32" in err) == (0, True)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["collections"][0]["passes"][0]["dtype"] == "float32"


@pytest.mark.parametrize("heavy", ["torch", "transformers", "numpy", "pydantic", "pyarrow"])
def test_importing_the_package_loads_nothing_heavy(heavy: str) -> None:
    assert heavy not in loaded_modules("import ultimate_embedder")


@pytest.mark.parametrize("arguments", [["--help"], ["embed", "--help"], ["--version"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    modules = loaded_modules(
        f"from ultimate_embedder.cli import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass"
    )
    assert not modules & {"torch", "transformers", "numpy", "pydantic", "pyarrow"}


def test_models_list_does_not_load_torch() -> None:
    assert "torch" not in loaded_modules("from ultimate_embedder.cli import main\nmain(['models', 'list'])")
