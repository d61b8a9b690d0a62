from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ultimate_embedder.config import (
    DEFAULT_MODEL,
    PARALLELISMS,
    FieldChoice,
    HubAccess,
    ModelChoice,
    RunConfig,
    declared_options,
)
from ultimate_embedder.errors import UsageError
from ultimate_embedder.export import EXPORT_KINDS
from ultimate_embedder.options import MODE_WORDS, make_config
from ultimate_embedder.vectors import FUSIONS

NAME_LISTS = ["device_order", "no_ensemble", "force_cpu"]


@pytest.fixture
def chunks(tmp_path: Path) -> Path:
    folder = tmp_path / "chunks"
    folder.mkdir()
    return folder


def refusal(chunks: Path, output: Path | None = None, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        make_config(chunks, output or chunks.parent / "out", **options)
    return str(caught.value)


def config(chunks: Path, **options: Any) -> RunConfig:
    return make_config(chunks, chunks.parent / "out", **options)


def test_the_defaults_are_one_model_and_every_export_but_the_slow_one(chunks: Path) -> None:
    made = config(chunks)
    assert made == RunConfig(
        chunks=(chunks,),
        output=chunks.parent / "out",
        name=None,
        collections=(),
        fields=FieldChoice(),
        models=(ModelChoice(DEFAULT_MODEL, 1.0),),
        sparse=(),
        mode="auto",
        fusion="named",
        parallelism="replicas",
        companions="spill",
        release_companions=False,
        batch_tokens=(),
        batch_rows=None,
        keep_primary=False,
        warm_cache=False,
        no_ensemble=(),
        force_cpu=(),
        devices="auto",
        device_order=(),
        max_tokens=None,
        token_cap=None,
        overlong="truncate",
        overlap=None,
        dim=None,
        precision="auto",
        min_cosine=None,
        backend="torch",
        gpu0_ceiling_bytes=None,
        safety_margin=0.08,
        gradient_checkpointing=False,
        allow_missing_companions=False,
        hub=HubAccess(offline=True),
        hnsw=None,
        exports=tuple(kind for kind in EXPORT_KINDS if kind != "jsonl"),
        summary=None,
        dry_run=False,
        skip_existing=False,
        deadline_s=None,
        stall_timeout_s=None,
        fresh=False,
        resume_from=None,
        engine="local",
        ray_address="auto",
        ray_nodes=None,
        ray_wait_s=600.0,
        unit_timeout_s=300.0,
        ship_models=False,
        shared_output=False,
        no_report=False,
        otel=False,
        quiet=False,
    )


def test_every_option_becomes_a_field_of_the_config_or_of_its_hub_access() -> None:
    fields = {option.about.field or option.name for option in declared_options(make_config)}
    hub = {"cache_dir", "offline", "refresh_cache", "trust_remote_code"}
    chosen = {"text_field", "id_field", "metadata_field", "title_field"}
    assert {field.name for field in dataclasses.fields(RunConfig)} == (fields - hub - chosen) | {"hub", "fields"}


def test_fields_may_be_paths(chunks: Path) -> None:
    made = config(chunks, text_field="meta.body", id_field="uid", title_field="title")
    assert made.fields == FieldChoice(text="meta.body", id="uid", metadata=None, title="title")


@pytest.mark.parametrize("field", ["", "meta.", ".body", "a..b"])
def test_a_field_without_a_name_is_refused(chunks: Path, field: Any) -> None:
    said = refusal(chunks, text_field=field)
    assert said == f"--text-field {field!r}: write a key of your records, or a path such as meta.body."


def test_one_field_cannot_be_text_and_title(chunks: Path) -> None:
    said = refusal(chunks, text_field="body", title_field="body")
    assert said == "--text-field and --title-field are both body. Drop one."


def test_every_option_is_described() -> None:
    for option in declared_options(make_config):
        assert option.about.help, option.name
        assert option.about.group, option.name
        assert option.is_switch or option.about.metavar, option.name


def test_a_config_cannot_be_changed(chunks: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        config(chunks).mode = "single"  # type: ignore[misc]


def test_an_unknown_option_is_an_error(chunks: Path) -> None:
    with pytest.raises(TypeError, match="modle"):
        config(chunks, modle="bge-m3")


@pytest.mark.parametrize("value", ["a,b", " a , ,b ", ["a", "b"], ("a", "b")])
def test_lists_are_words_with_commas_or_sequences(chunks: Path, value: Any) -> None:
    made = config(chunks, collections=value, models=value)
    assert made.collections == ("a", "b")
    assert [choice.name for choice in made.models] == ["a", "b"]


def test_an_export_asked_for_twice_is_written_once(chunks: Path) -> None:
    assert config(chunks, exports="npy,jsonl,npy").exports == ("npy", "jsonl")


def test_a_chunk_folder_that_is_not_there_is_refused(chunks: Path) -> None:
    missing = chunks / "nowhere"
    assert (
        refusal(missing) == f"{missing} does not exist. Give a chunk file, or the folder that holds your chunk files."
    )


def test_an_output_that_is_a_file_is_refused(chunks: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    file.touch()
    assert refusal(chunks, file) == f"--output {file} is a file. Give a folder, or a path that does not exist yet."


@pytest.mark.parametrize("detour", ["", "../chunks", "sub/.."])
def test_the_chunk_folder_cannot_be_the_output(chunks: Path, detour: str) -> None:
    (chunks / "sub").mkdir()
    output = chunks / detour
    assert refusal(chunks, output) == f"--output {output} is the chunk folder itself. Give another folder."


@pytest.mark.parametrize("models", ["", " , ", []])
def test_no_model_at_all_is_refused(chunks: Path, models: Any) -> None:
    expected = "--models is empty. 'ultimate-embedder models list' shows the names."
    assert refusal(chunks, models=models) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mode": "sequental"},
            "--mode sequental: not one of auto, single, simultaneous, sequential, exclusive. Did you mean sequential?",
        ),
        ({"mode": ""}, "--mode : not one of auto, single, simultaneous, sequential, exclusive."),
        ({"precision": "FP16"}, "--precision FP16: not one of auto, fp32, fp16, bf16, int8. Did you mean fp16?"),
        ({"exports": "npy,parket"}, "--export parket: not one of npy, parquet, jsonl, qdrant. Did you mean parquet?"),
        ({"fusion": "conact"}, "--fusion conact: not one of named, concat, weighted_average. Did you mean concat?"),
        (
            {"fusion": "weighted-average"},
            "--fusion weighted-average: not one of named, concat, weighted_average. Did you mean weighted_average?",
        ),
        (
            {"parallelism": "data_parallel"},
            "--parallelism data_parallel: not one of replicas, data-parallel, none. Did you mean data-parallel?",
        ),
        (
            {"parallelism": "replica"},
            "--parallelism replica: not one of replicas, data-parallel, none. Did you mean replicas?",
        ),
        ({"token_cap": 7}, "--token-cap 7: must be at least 8."),
        ({"max_tokens": 7}, "--max-tokens 7: must be at least 8."),
        ({"max_tokens": -1}, "--max-tokens -1: must be at least 8."),
        ({"dim": 0}, "--dim 0: must be at least 1."),
    ],
)
def test_a_wrong_word_is_named_with_what_it_may_be(chunks: Path, options: dict[str, Any], message: str) -> None:
    assert refusal(chunks, **options) == message


@pytest.mark.parametrize("devices", ["auto", "cpu", "cuda", "simulated:2x15GiB"])
def test_devices_are_named_in_one_word(chunks: Path, devices: str) -> None:
    assert config(chunks, devices=devices).devices == devices


@pytest.mark.parametrize("devices", [["cpu"], ("cpu",), "cpu"])
def test_devices_may_be_a_list(chunks: Path, devices: Any) -> None:
    assert config(chunks, devices=devices).devices == "cpu"


@pytest.mark.parametrize(("deadline", "seconds"), [(3600, 3600.0), (0.5, 0.5), ("90s", 90.0), ("1h30m", 5400.0)])
def test_a_deadline_is_a_number_of_seconds_or_a_duration(chunks: Path, deadline: Any, seconds: float) -> None:
    assert config(chunks, deadline=deadline).deadline_s == seconds


@pytest.mark.parametrize("deadline", [-1, float("nan"), float("inf")])
def test_a_deadline_in_the_past_or_never_is_refused(chunks: Path, deadline: float) -> None:
    assert refusal(chunks, deadline=deadline) == f"--deadline {deadline}: must be a number of seconds, at least 0."


@pytest.mark.parametrize(("timeout", "seconds"), [(90, 90.0), ("30m", 1800.0), ("1h30m", 5400.0)])
def test_a_stall_timeout_is_a_duration(chunks: Path, timeout: Any, seconds: float) -> None:
    assert config(chunks, stall_timeout=timeout).stall_timeout_s == seconds


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), "0s", "18:30", "soon"])
def test_a_stall_timeout_of_nothing_or_until_a_clock_time_is_refused(chunks: Path, timeout: Any) -> None:
    expected = f"--stall-timeout {timeout}: write a duration, such as 1h30m, 45m or 90s."
    assert refusal(chunks, stall_timeout=timeout) == expected


def test_a_number_in_words_is_refused(chunks: Path) -> None:
    assert refusal(chunks, max_tokens="x") == "--max-tokens 'x': not an integer."


@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_fusion_is_taken_by_its_name(chunks: Path, fusion: str) -> None:
    assert config(chunks, fusion=fusion).fusion == fusion


def test_several_models_keep_their_own_vectors_unless_told_otherwise(chunks: Path) -> None:
    assert config(chunks, models="bge-m3,all-minilm-l6-v2").fusion == "named"


@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_a_way_to_use_several_devices_is_taken_by_its_name(chunks: Path, parallelism: str) -> None:
    assert config(chunks, parallelism=parallelism).parallelism == parallelism


@pytest.mark.parametrize("mode", [mode for mode in MODE_WORDS if mode != "single"])
def test_several_models_may_share_devices_in_any_mode_but_single(chunks: Path, mode: str) -> None:
    assert config(chunks, models="bge-m3,all-minilm-l6-v2", mode=mode).mode == mode


def test_parallel_is_the_old_name_of_simultaneous(chunks: Path) -> None:
    assert config(chunks, models="bge-m3,all-minilm-l6-v2", mode="parallel").mode == "simultaneous"


def test_the_mode_for_one_model_is_refused_for_several(chunks: Path) -> None:
    assert config(chunks, models="bge-m3", mode="single").mode == "single"
    expected = "--mode single takes one model, but --models names 2. Drop --mode."
    assert refusal(chunks, models="bge-m3,all-minilm-l6-v2", mode="single") == expected


@pytest.mark.parametrize("option", NAME_LISTS)
@pytest.mark.parametrize("value", ["1,0", " 1 ,, 0 ", ["1", "0"], ("1", "0")])
def test_names_are_kept_in_the_order_in_which_they_were_written(chunks: Path, option: str, value: Any) -> None:
    assert getattr(config(chunks, **{option: value}), option) == ("1", "0")


@pytest.mark.parametrize("option", NAME_LISTS)
def test_names_may_be_left_out(chunks: Path, option: str) -> None:
    assert getattr(config(chunks), option) == getattr(config(chunks, **{option: []}), option) == ()


@pytest.mark.parametrize("option", NAME_LISTS)
@pytest.mark.parametrize("value", ["", " , "])
def test_no_name_where_one_was_to_be_written_is_refused(chunks: Path, option: str, value: str) -> None:
    written = "--" + option.replace("_", "-")
    assert (
        refusal(chunks, None, **{option: value}) == f"{written} is empty. Give at least one name, or drop the option."
    )


def test_the_devices_may_come_from_the_environment(chunks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULTIMATE_EMBEDDER_DEVICES", "simulated:2x15GiB")
    assert config(chunks).devices == "simulated:2x15GiB"
    assert config(chunks, devices="cpu").devices == "cpu"


def test_a_lower_limit_of_tokens_is_beside_the_limit(chunks: Path) -> None:
    made = config(chunks, max_tokens=512, token_cap=8)
    assert (made.max_tokens, made.token_cap) == (512, 8)


def test_fresh_and_skip_existing_contradict_each_other(chunks: Path) -> None:
    assert config(chunks, skip_existing=True).skip_existing
    expected = "--fresh and --skip-existing contradict each other. Drop one."
    assert refusal(chunks, skip_existing=True, fresh=True) == expected


def test_fresh_and_resume_from_contradict_each_other(chunks: Path) -> None:
    expected = "--fresh and --resume-from contradict each other. Drop one."
    assert refusal(chunks, resume_from=chunks, fresh=True) == expected


def test_a_copy_of_the_summary_is_written_where_that_is_asked_for(chunks: Path, tmp_path: Path) -> None:
    assert config(chunks).summary is None
    assert config(chunks, summary=str(tmp_path / "s.json")).summary == tmp_path / "s.json"


def test_the_options_are_plain_json(chunks: Path, tmp_path: Path) -> None:
    made = config(chunks, models="bge-m3=0.5", summary=tmp_path / "s.json", dim=64, no_ensemble="a,b")
    plain = json.loads(json.dumps(made.as_dict()))
    assert set(plain) == {field.name for field in dataclasses.fields(RunConfig)}
    assert plain["chunks"] == [str(chunks)]
    assert plain["summary"] == str(tmp_path / "s.json")
    assert plain["models"] == [{"name": "bge-m3", "weight": 0.5}]
    assert plain["no_ensemble"] == ["a", "b"]


WRONG = object()  # of no type that any option takes
OF_A_TYPE = [option for option in declared_options(make_config) if option.name != "chunks"]  # which may be anything


@pytest.mark.parametrize(
    "value", [WRONG, b"bytes", [None], {1: 2}, 1 + 2j], ids=["object", "bytes", "none", "dict", "complex"]
)
def test_a_value_of_the_wrong_type_is_answered_in_words(chunks: Path, value: Any) -> None:
    for option in OF_A_TYPE:
        given = {"chunks": chunks, "output": chunks.parent / "out", option.name: value}
        with pytest.raises(UsageError, match=f"^{option.flag} .*: not [a-zA-Z ]+\\.$"):
            make_config(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": 3}, "--models 3: not text or a list of texts or a dictionary of numbers."),
        ({"models": ["a", 3]}, "--models ['a', 3]: not text or a list of texts or a dictionary of numbers."),
        ({"max_tokens": 12.5}, "--max-tokens 12.5: not an integer."),
        ({"max_tokens": True}, "--max-tokens True: not an integer."),
        ({"devices": 0}, "--devices 0: not text or a list of texts."),
        ({"output": None}, "--output is missing."),
        ({"chunks": None}, "CHUNKS is missing."),
        ({"precision": 16}, "--precision 16: not text."),
        ({"quiet": "yes"}, "--quiet 'yes': not True or False."),
        ({"exports": 1}, "--export 1: not text or a list of texts."),
        ({"deadline": [1]}, "--deadline [1]: not text or a number."),
        ({"models": {"a": 0.0}}, "--models a=0: a weight must be a positive number."),
    ],
)
def test_common_mistakes_of_type_are_answered_in_words(chunks: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_config(**{"chunks": chunks, "output": chunks.parent / "out", **options})
    assert str(caught.value) == message


def test_none_means_the_default(chunks: Path) -> None:
    optional = [option.name for option in declared_options(make_config) if not option.required]
    assert config(chunks, **dict.fromkeys(optional)) == config(chunks)


def test_weights_may_be_a_dictionary(chunks: Path) -> None:
    expected = (ModelChoice("a", 0.7), ModelChoice("b", 0.3))
    assert config(chunks, models={"a": 0.7, "b": 0.3}).models == expected == config(chunks, models="a=0.7,b=0.3").models


def test_an_overlap_needs_segments(chunks: Path) -> None:
    assert config(chunks, overlong="pool", overlap=0).overlap == 0
    with pytest.raises(UsageError, match=r"--overlap is for --overlong pool or split"):
        config(chunks, overlap=8)
    with pytest.raises(UsageError, match=r"--overlap -1: must be at least 0"):
        config(chunks, overlong="split", overlap=-1)
    with pytest.raises(UsageError, match=r"truncate"):
        config(chunks, overlong="shorten")
