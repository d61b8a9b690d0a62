"""`--config` and `--save-config`: every option by its name, and the same run again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from ultimate_embedder import cli
from ultimate_embedder.cli.embed import OPTIONS
from ultimate_embedder.config import RunConfig, declared_options, read_option_file, write_option_file
from ultimate_embedder.errors import UsageError
from ultimate_embedder.options import make_config

# a valid value of each option, as it is written on the command line; switches are True
VALUES: dict[str, Any] = {
    "engine": "ray",
    "ray_address": "local",
    "ray_nodes": 3,
    "ray_wait": "20m",
    "unit_timeout": "2m",
    "chunks": "my chunks",
    "output": "out",
    "name": "all of it",
    "collections": "docs,more",
    "text_field": "meta.body",
    "id_field": "number",
    "metadata_field": "meta",
    "title_field": "title",
    "models": "bge-m3=0.7,all-minilm-l6-v2=0.3",
    "sparse": "bm25=german,splade=granite-embedding-30m-sparse",
    "max_tokens": 512,
    "token_cap": 256,
    "overlong": "pool",
    "overlap": 32,
    "dim": 64,
    "precision": "int8",
    "min_cosine": 0.99,
    "backend": "onnx",
    "mode": "sequential",
    "fusion": "concat",
    "no_ensemble": "docs",
    "devices": "cpu",
    "device_order": "1,0",
    "force_cpu": "more",
    "companions": "share",
    "batch_tokens": "bge-m3=4096,8192",
    "batch_rows": 16,
    "parallelism": "none",
    "gpu0_ceiling": "11GB",
    "safety_margin": "10%",
    "cache_dir": "hub",
    "trust_remote_code": "jina-embeddings-v4",
    "deadline": "11h30m",
    "stall_timeout": "30m",
    "resume_from": "earlier",
    "exports": "npy,qdrant",
    "hnsw": "m=16,ef_construct=100",
    "summary": 'a "quoted" é 😀 \\ name.json',
    "log_level": "debug",
    "log_file": "run.log",
}
CLUSTER = ("ray_address", "ray_nodes", "ship_models", "shared_output")
NEEDS = {"overlap": ["overlong"], "min_cosine": ["precision"], **{name: ["engine", "ray_address"] for name in CLUSTER}}
CONTRADICT = {"offline": "refresh_cache", "fresh": "resume_from", "skip_existing": "fresh", "min_cosine": "engine"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the folders that options name."""
    for name in ("my chunks", "chunks", "earlier"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """What `embed` would run with; nothing is run."""
    made: list[RunConfig] = []

    def note(config: RunConfig, **options: Any) -> Any:
        made.append(config)
        raise UsageError("enough")

    monkeypatch.setattr("ultimate_embedder.api.run_and_report", note)
    return made


def words_of(name: str) -> list[str]:
    (option,) = (option for option in OPTIONS if option.name == name)
    if option.about.positional:
        return [str(VALUES[name])]
    return [option.flag] if option.is_switch else [option.flag, str(VALUES[name])]


def config_of(run: Run, configs: list[RunConfig], *words: object) -> RunConfig:
    done = run("embed", *words)
    assert (done.code, done.err) == (2, "error: enough\n")
    return configs.pop()


def test_every_option_has_a_value_here() -> None:
    assert {option.name for option in OPTIONS if not option.is_switch} == set(VALUES)


@pytest.mark.parametrize("name", [option.name for option in OPTIONS if option.name != "dry_run"])
def test_a_saved_option_makes_the_same_run(name: str, run: Run, configs: list[RunConfig]) -> None:
    needed = [word for each in {"chunks", "output", *NEEDS.get(name, ())} - {name} for word in words_of(each)]
    first = config_of(run, configs, *needed, *words_of(name), "--save-config", "run.toml")
    assert config_of(run, configs, "--config", "run.toml") == first


def test_all_options_together_make_the_same_run(run: Run, configs: list[RunConfig]) -> None:
    chosen = [option.name for option in OPTIONS if option.name not in {*CONTRADICT, "dry_run"}]
    words = [word for name in chosen for word in words_of(name)]
    first = config_of(run, configs, *words, "--save-config", "run.toml")
    assert config_of(run, configs, "--config", "run.toml") == first
    defaults = make_config("my chunks", "out")
    same = [
        field.name
        for field in dataclasses.fields(RunConfig)
        if getattr(first, field.name) == getattr(defaults, field.name)
    ]
    assert same == ["chunks", "output", "min_cosine", "dry_run", "skip_existing", "fresh"]


def test_a_dry_run_saves_the_options_of_the_run_that_it_rehearses(run: Run, configs: list[RunConfig]) -> None:
    assert config_of(run, configs, "chunks", "-o", "out", "--dry-run", "--save-config", "run.toml").dry_run
    assert not config_of(run, configs, "--config", "run.toml").dry_run


def test_the_same_command_may_save_its_options_again_and_others_replace_them(
    run: Run, configs: list[RunConfig], here: Path
) -> None:
    config_of(run, configs, "chunks", "-o", "out", "--save-config", "run.toml")
    before = (here / "run.toml").read_text()
    config_of(run, configs, "chunks", "-o", "out", "--save-config", "run.toml")
    assert (here / "run.toml").read_text() == before
    config_of(run, configs, "chunks", "-o", "out", "--dim", 8, "--save-config", "run.toml")
    assert (here / "run.toml").read_text() == f"{before}\n# models\ndim = 8\n"


def test_a_file_of_somebody_else_is_not_replaced(run: Run, here: Path) -> None:
    (here / "mine.toml").write_text("precious = true")
    done = run("embed", "chunks", "-o", "out", "--save-config", "mine.toml")
    told = "--save-config mine.toml exists and was not written by --save-config. Choose another file."
    assert (done.code, done.err) == (2, f"error: {told}\n")
    assert (here / "mine.toml").read_text() == "precious = true"


def test_the_command_line_wins_over_the_file(run: Run, configs: list[RunConfig], here: Path) -> None:
    (here / "run.toml").write_text('chunks = "chunks"\noutput = "out"\ndim = 8\noffline = true\nquiet = true\n')
    made = config_of(run, configs, "--config", "run.toml", "--dim", 16, "-o", "elsewhere", "--no-quiet")
    assert (made.dim, made.output, made.quiet, made.hub.offline) == (16, Path("elsewhere"), False, True)


@pytest.mark.parametrize("key", ["max-tokens", "max_tokens", "Max-Tokens"])
def test_a_name_may_be_written_with_underscores(key: str, run: Run, configs: list[RunConfig], here: Path) -> None:
    (here / "run.toml").write_text(f"{key} = 64")
    assert config_of(run, configs, "chunks", "-o", "out", "--config", "run.toml").max_tokens == 64


@pytest.mark.parametrize("key", ["export", "exports"])
def test_lists_are_lists_or_texts_with_commas(key: str, run: Run, configs: list[RunConfig], here: Path) -> None:
    for value in ('["npy", "jsonl"]', '"npy,jsonl"'):
        (here / "run.toml").write_text(f"{key} = {value}")
        assert config_of(run, configs, "chunks", "-o", "out", "--config", "run.toml").exports == ("npy", "jsonl")


def test_numbers_are_what_they_are_in_python(run: Run, configs: list[RunConfig], here: Path) -> None:
    (here / "run.toml").write_text("deadline = 3600\nsafety-margin = 0.25\nbatch-tokens = 2048\ngpu0-ceiling = 1000")
    made = config_of(run, configs, "chunks", "-o", "out", "--config", "run.toml")
    assert (made.deadline_s, made.safety_margin, made.gpu0_ceiling_bytes) == (3600.0, 0.25, 1000)
    assert made.batch_tokens_for("any") == 2048


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max-tokns = 64", "run.toml: there is no option max-tokns. Did you mean max-tokens?"),
        ("[models]\nkey = 1", 'run.toml: models = {"key": 1}: write text in quotes or a list of texts.'),
        ('max-tokens = "many"', 'run.toml: max-tokens = "many": write a whole number.'),
        ("max-tokens = true", "run.toml: max-tokens = true: write a whole number."),
        ("offline = 1", "run.toml: offline = 1: write true or false."),
        ("models = [1]", "run.toml: models = [1]: write text in quotes or a list of texts."),
        ("deadline = 18:30:00", 'run.toml: deadline = "18:30:00": write a number or text in quotes.'),
        ("export = 'npy'\nexports = 'npy'", "run.toml: export is given twice. Drop one."),
        ("max-tokens = 3", "run.toml: --max-tokens 3: must be at least 8."),
        ("mode = 'sequental'", "run.toml: --mode sequental: not one of auto, single, "),
        ("models = bge-m3", "run.toml is not valid TOML: Invalid value (at line 1, column 10). Write output = "),
        ("output = ", "run.toml is not valid TOML: "),
        ("x = " + "[" * 5000, "run.toml is not valid TOML: "),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_name(run: Run, here: Path, content: str, message: str) -> None:
    (here / "run.toml").write_text(content)
    code, out, err = run("embed", "chunks", "-o", "out", "--config", "run.toml")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}")
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.toml", "--config nowhere.toml does not exist. Write one with --save-config nowhere.toml."),
        ("chunks", "--config chunks cannot be read: Is a directory."),
        ("latin.toml", "latin.toml is not UTF-8 text: invalid continuation byte at byte 13."),
        ("endless.toml", "--config endless.toml is longer than 1 MiB. Give a file of options."),
    ],
)
def test_a_file_that_cannot_be_read_is_wrong_usage(run: Run, here: Path, name: str, message: str) -> None:
    (here / "latin.toml").write_bytes('output = "caf\xe9s"'.encode("latin-1"))
    (here / "endless.toml").write_bytes(b"# " * (1 << 20))
    assert run("embed", "--config", name) == (2, "", f"error: {message}\n")


def test_an_error_about_the_command_line_does_not_name_the_file(run: Run, here: Path) -> None:
    (here / "run.toml").write_text("max-tokens = 64")
    done = run("embed", "chunks", "-o", "out", "--config", "run.toml", "--max-tokens", 3)
    assert done.err == "error: --max-tokens 3: must be at least 8.\n"


def test_a_file_can_be_written_and_read_in_python(here: Path) -> None:
    options = declared_options(make_config)
    given = {"chunks": Path("a/b"), "models": ["bge-m3", "x\x7f\ty"], "safety_margin": 1e-05, "quiet": False}
    write_option_file(here / "deep" / "run.toml", options, given, "...")
    assert read_option_file(here / "deep" / "run.toml", options) == {**given, "chunks": "a/b"}


def test_a_name_that_is_not_unicode_cannot_be_saved(here: Path) -> None:
    with pytest.raises(UsageError, match="is not valid Unicode"):
        write_option_file(here / "run.toml", declared_options(make_config), {"output": "a\udcff"}, "...")
    assert not (here / "run.toml").exists()


def test_no_option_has_a_value_unless_it_is_given() -> None:
    parser = cli.build_parser()
    given = vars(parser.parse_args(["embed"]))
    names = {option.name for option in OPTIONS}
    assert set(given) - {"run"} == {"config", "save_config"}
    assert names >= {"json", "log_level", "quiet", "chunks", "output"}
