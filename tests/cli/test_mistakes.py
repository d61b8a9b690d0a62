"""Typical mistakes, and what the command says: what is wrong, where, and what to do. None of them writes anything."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from tests.cli.conftest import Run
from ultimate_embedder.output import LOCK_NAME, SUMMARY_NAME


class Mistake(NamedTuple):
    name: str
    words: str
    message: str
    code: int = 2


HELP = "\n'ultimate-embedder{} --help' lists the {}."
OPTIONS = HELP.format(" embed", "options")
LIST = "'ultimate-embedder models list'"
MODES = "auto, single, simultaneous, sequential, exclusive"
NOT_AN_OUTPUT = "is not an output of ultimate-embedder: it has no summary.json and no vectors"
MISTAKES = [
    # commands and options
    Mistake(
        "a misspelled command",
        "embd chunks -o out",
        "embd is not a command. Did you mean embed?" + HELP.format("", "commands"),
    ),
    Mistake(
        "a misspelled action",
        "models lst",
        "lst is not an action. Did you mean list?" + HELP.format(" models", "actions"),
    ),
    Mistake(
        "an action without its command",
        "pull bge-m3",
        "pull is not a command. Did you mean models pull?" + HELP.format("", "commands"),
    ),
    Mistake(
        "no command, but a folder",
        "chunks -o out",
        "chunks is not a command. To embed what is there: ultimate-embedder embed chunks -o OUT"
        + HELP.format("", "commands"),
    ),
    Mistake(
        "an option before the command",
        "--models bge-m3 embed chunks -o out",
        "bge-m3 is not a command. Options follow the command." + HELP.format("", "commands"),
    ),
    Mistake(
        "a misspelled option",
        "embed chunks -o out --precison fp16",
        "unrecognized arguments: --precison fp16. Did you mean --precision?" + OPTIONS,
    ),
    Mistake(
        "an option of one letter that does not exist",
        "embed chunks -o out -d cpu",
        "unrecognized arguments: -d cpu. Did you mean --dry-run or --dim or --devices or --device-order or --deadline?"
        + OPTIONS,
    ),
    Mistake("an option without its value", "embed chunks -o", "-o/--output: expected one argument." + OPTIONS),
    Mistake(
        "no output",
        "embed chunks",
        "embed needs --output: ultimate-embedder embed chunks/ -o out/ (or --output in --config).",
    ),
    Mistake(
        "no chunks",
        "embed -o out",
        "embed needs CHUNKS: ultimate-embedder embed chunks/ -o out/ (or CHUNKS in --config).",
    ),
    # folders
    Mistake(
        "a chunk folder that does not exist",
        "embed nowhere -o out",
        "nowhere does not exist. Give a chunk file, or the folder that holds your chunk files.",
    ),
    Mistake(
        "the output is the chunk folder",
        "embed chunks -o chunks",
        "--output chunks is the chunk folder itself. Give another folder.",
    ),
    Mistake(
        "the output is a collection",
        "embed chunks -o chunks/docs",
        "--output chunks/docs contains chunk files. Give another folder, so that they are not overwritten.",
    ),
    Mistake(
        "the output is a file",
        "embed chunks -o notes.txt",
        "--output notes.txt is a file. Give a folder, or a path that does not exist yet.",
    ),
    Mistake(
        "a summary that is a folder",
        "embed chunks -o out --summary empty",
        "--summary empty is a folder. Give the name of a file.",
    ),
    Mistake(
        "nothing to resume from",
        "embed chunks -o out --resume-from nowhere",
        "--resume-from nowhere is not a folder. Give the --output of an earlier run.",
    ),
    # models
    Mistake(
        "a misspelled model",
        "embed chunks -o out --models bgem3",
        f"bgem3 is neither a known model nor a folder. Did you mean bge-m3? {LIST} shows the names; a folder needs a "
        "path, such as ./my-model.",
    ),
    Mistake(
        "a folder that is no model",
        "embed chunks -o out --models empty",
        "empty is not a model: it has neither modules.json nor config.json. Give the folder that holds them, or a name "
        f"from {LIST}.",
    ),
    Mistake(
        "a reranker",
        "embed chunks -o out --models bge-reranker-v2-m3",
        f"bge-reranker-v2-m3 is a reranker, not an embedding model. Choose another from {LIST}.",
    ),
    Mistake(
        "a model twice",
        "embed chunks -o out --models minilm,all-minilm-l6-v2",
        "--models names all-minilm-l6-v2 twice. Drop one, or rename the folder of one.",
    ),
    Mistake(
        "a weight that is no number",
        "embed chunks -o out --models minilm=heavy",
        "--models minilm=heavy: 'heavy' is not a number. Write KEY=0.7, for example.",
    ),
    Mistake(
        "a misspelled model to download",
        "models pull bgem3",
        f"bgem3 is neither a known model nor a folder. Did you mean bge-m3? {LIST} shows the names; a folder needs a "
        "path, such as ./my-model.",
    ),
    # values
    Mistake(
        "a misspelled mode",
        "embed chunks -o out --mode sequental",
        f"--mode sequental: not one of {MODES}. Did you mean sequential?",
    ),
    Mistake(
        "a mode for one model and two models",
        "embed chunks -o out --mode single --models minilm,bge-m3",
        "--mode single takes one model, but --models names 2. Drop --mode.",
    ),
    Mistake(
        "a misspelled export",
        "embed chunks -o out --export parket",
        "--export parket: not one of npy, parquet, jsonl, qdrant. Did you mean parquet?",
    ),
    Mistake("no tokens", "embed chunks -o out --max-tokens 0", "--max-tokens 0: must be at least 8."),
    Mistake(
        "tokens in words",
        "embed chunks -o out --max-tokens many",
        "--max-tokens: 'many' is not a whole number." + OPTIONS,
    ),
    Mistake(
        "more tokens than the model can have",
        "embed chunks -o out --devices cpu --max-tokens 1000",
        "--max-tokens 1000: all-minilm-l6-v2 supports at most 512 tokens. Lower --max-tokens.",
    ),
    Mistake(
        "more dimensions than there are",
        "embed chunks -o out --devices cpu --dim 500",
        "--dim 500: vectors of all-minilm-l6-v2 have 384 dimensions. Lower --dim.",
    ),
    Mistake(
        "a size in words",
        "embed chunks -o out --gpu0-ceiling lots",
        "--gpu0-ceiling: 'lots' is not a size. Write 15GiB, 12GB or 512MiB, for example.",
    ),
    Mistake(
        "a deadline that is no time",
        "embed chunks -o out --deadline yesterday",
        "--deadline yesterday: write a duration (11h30m, 45m, 90s) or a clock time (18:30).",
    ),
    Mistake(
        "a deadline in the past",
        "embed chunks -o out --deadline=-5m",
        "--deadline -5m: write a duration (11h30m, 45m, 90s) or a clock time (18:30).",
    ),
    Mistake(
        "options that contradict each other",
        "embed chunks -o out --fresh --skip-existing",
        "--fresh and --skip-existing contradict each other. Drop one.",
    ),
    Mistake(
        "a network that may and may not be used",
        "embed chunks -o out --offline --refresh-cache",
        "--offline and --refresh-cache contradict each other. Drop one.",
    ),
    Mistake(
        "a precision that a backend does not have",
        "embed chunks -o out --precision bf16 --backend onnx",
        "--backend onnx computes in fp32, or with --precision int8. Drop --precision bf16.",
    ),
    Mistake(
        "messages at two levels",
        "embed chunks -o out -v --log-level error",
        "-v and --log-level error contradict each other. Drop one.",
    ),
    # devices
    Mistake(
        "an unknown device",
        "embed chunks -o out --devices gpu",
        "--devices gpu: not one of auto, cpu, cuda, simulated:NxSIZE, simulated:SIZE+SIZE. Did you mean cpu?",
    ),
    # option files
    Mistake(
        "a text without quotes in an option file",
        "embed chunks -o out --config bad.toml",
        'bad.toml is not valid TOML: Invalid value (at line 1, column 10). Write output = "out" or max-tokens = 512.',
    ),
    Mistake(
        "a misspelled name in an option file",
        "embed chunks -o out --config typo.toml",
        "typo.toml: there is no option max-tokns. Did you mean max-tokens?",
    ),
    Mistake(
        "chunks after an option that may have a value",
        "embed -o out --hnsw chunks",
        "--hnsw chunks: write m=16,ef_construct=100, for example, or --hnsw alone.",
    ),
    Mistake(
        "an option file that does not exist",
        "embed chunks -o out --config nowhere.toml",
        "--config nowhere.toml does not exist. Write one with --save-config nowhere.toml.",
    ),
    # outputs
    Mistake(
        "one card in the words of torch",
        "embed chunks -o out --devices cuda:1",
        "--devices cuda:1: write --devices cuda --device-order 1 for one card of several.",
    ),
    Mistake(
        "an upload without a server",
        "upload chunks",
        "--url is missing, and QDRANT_URL is not set. Write --url http://localhost:6333, for example.",
    ),
    Mistake(
        "an upload of nothing",
        "upload nowhere --url http://localhost:6333",
        "nowhere is not a folder. Give the --output of an earlier embed.",
    ),
    Mistake(
        "an upload of chunks",
        "upload chunks --url http://localhost:6333",
        "no chunks.parquet in chunks or its subfolders. Run embed again with --export parquet: stored vectors are "
        "reused.",
        1,
    ),
    Mistake("the status of chunks", "status chunks", f"chunks {NOT_AN_OUTPUT}. Give the --output of an earlier embed."),
    Mistake(
        "a check of a file", "verify notes.txt", f"notes.txt {NOT_AN_OUTPUT}. Give the --output of an earlier embed."
    ),
    Mistake("a sample of less than nothing", "verify damaged --sample=-1", "--sample -1: must be at least 0."),
    Mistake(
        "a damaged summary",
        "models manifest damaged",
        "damaged/summary.json is not a summary of this version of ultimate-embedder, or is damaged (Invalid JSON: key "
        "must be a string at line 1 column 2). Run the same embed command again to rewrite it, or delete the file.",
    ),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: chunks, and things that are none. There is no network."""
    for folder in ("chunks/docs", "empty", "damaged"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "chunks" / "docs" / "a.jsonl").write_text('{"text": "some words"}\n')
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "bad.toml").write_text("models = bge-m3\n")
    (tmp_path / "typo.toml").write_text("max-tokns = 512\n")
    (tmp_path / "damaged" / LOCK_NAME).touch()
    (tmp_path / "damaged" / SUMMARY_NAME).write_text("{nonsense")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QDRANT_URL", raising=False)

    def forbid(*arguments: object, **options: object) -> NoReturn:
        raise AssertionError(f"the network was used: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", forbid)
    monkeypatch.setattr(socket, "getaddrinfo", forbid)
    return tmp_path


def tree(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_a_mistake_is_told_and_nothing_is_written(mistake: Mistake, run: Run, here: Path) -> None:
    before = tree(here)
    done = run(*mistake.words.split())
    assert (done.code, done.out, done.err) == (mistake.code, "", f"error: {mistake.message}\n")
    assert tree(here) == before
    assert not (here / "out").exists()


def test_a_gpu_that_is_not_there_is_not_replaced_by_something_slower(run: Run, here: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("embed", "chunks", "-o", "out", "--devices", "cuda")
    told = "--devices cuda: torch sees no card here. Use --devices cpu, or simulated:2x15GiB."
    assert (done.code, done.err) == (2, f"error: {told}\n")
    assert not (here / "out").exists()


# these are found out when a run has begun, and so leave a summary that says the same


def test_a_model_that_is_missing_offline(run: Run) -> None:
    done = run(*["embed", "chunks", "-o", "out", "--models", "bge-m3", "--offline", "--cache-dir", "hub", "-q"])
    looked = "bge-m3 is not on this machine. Looked in: the Hugging Face cache hub."
    pull = "Download it with 'ultimate-embedder models pull bge-m3', or drop --offline"
    assert (done.code, done.out) == (1, "")
    assert done.err == f"error: {looked} {pull} (unset HF_HUB_OFFLINE, if it is set).\n"


def test_a_model_that_runs_code_and_is_not_trusted(run: Run) -> None:
    done = run(*["embed", "chunks", "-o", "out", "--models", "jina-embeddings-v4", "-q"])
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: jina-embeddings-v4 runs code from its own repository. If you have read it and ")
    assert "allow it with --trust-remote-code jina-embeddings-v4; else choose another" in done.err


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("empty", "no chunk files below empty: looked for "),
        ("chunks --collections dogs", "none of the collections that were asked for is below chunks: dogs."),
    ],
)
def test_nothing_to_embed(run: Run, folder: str, message: str) -> None:
    done = run("embed", *folder.split(), "-o", "out", "-q")
    assert (done.code, done.err) == (1, "")
    assert f"\n{message}" in f"\n{done.out}"


def test_a_dry_run_that_fails_names_no_log_as_it_writes_none(run: Run) -> None:
    done = run("embed", "chunks", "-o", "out", "--id-field", "nr", "--dry-run", "-q")
    assert done.code == 1
    assert "docs failed: --id-field nr: the record does not have" in done.out
    assert "events.jsonl" not in done.out


def test_a_trusted_name_that_no_model_has_is_said(run: Run) -> None:
    done = run(*["embed", "chunks", "-o", "out", "--trust-remote-code", "minilmm", "--dry-run", "--devices", "cpu"])
    assert done.code == 0
    assert "warning: --trust-remote-code minilmm: --models does not name it." in done.err
