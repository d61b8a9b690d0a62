"""The old configuration objects: defaults, options without effect, and options that never were."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from typing import Any

import pytest

from ultimate_embedder.compat import (
    AdvancedPreprocessingConfig,
    EnsembleConfig,
    KaggleExportConfig,
    KaggleGPUConfig,
    RerankingConfig,
)
from ultimate_embedder.compat.configs import DefaultInt
from ultimate_embedder.compat.options import hardware_options
from ultimate_embedder.config import OldEnvironment, old_environment
from ultimate_embedder.errors import UsageError
from ultimate_embedder.options import make_config

BATCH_OPTIONS = inspect.signature(make_config).parameters
Config = type[Any]
CONFIGS: list[Config] = [
    EnsembleConfig,
    KaggleGPUConfig,
    KaggleExportConfig,
    RerankingConfig,
    AdvancedPreprocessingConfig,
]
DEFAULTS: dict[Config, dict[str, Any]] = {
    EnsembleConfig: {
        "ensemble_models": ["jina-code-embeddings-1.5b", "bge-m3"],
        "model_weights": None,
        "weighting_strategy": "equal",
        "aggregation_method": "weighted_average",
        "sequential_passes": False,
        "sequential_data_parallel": True,
        "preferred_devices": None,
        "exclusive_mode": False,
        "warm_cache_after_release": False,
        "parallel_encoding": True,
        "memory_efficient": True,
    },
    KaggleGPUConfig: {
        "device_count": 2,
        "vram_per_gpu_gb": 15.83,
        "max_memory_per_gpu": 0.8,
        "precision": "fp16",
        "base_batch_size": 32,
        "dynamic_batching": True,
        "max_sequence_length": 2048,
        "backend": "pytorch",
        "gradient_checkpointing": True,
        "kaggle_environment": True,
        "output_path": "/kaggle/working",
    },
    KaggleExportConfig: {
        "export_numpy": True,
        "export_jsonl": True,
        "export_faiss": True,
        "export_sparse_jsonl": True,
        "working_dir": "/kaggle/working",
        "output_prefix": "ultimate_embeddings_v4",
    },
    RerankingConfig: {"enable_reranking": False, "top_k_candidates": 100, "rerank_top_k": 20, "batch_size": 32},
    AdvancedPreprocessingConfig: {},
}
WITHOUT_EFFECT = [(config, option) for config in CONFIGS for option in config.without_effect]
QUIET = OldEnvironment(
    force_cpu=False,
    refresh_cache=False,
    sequential=False,
    sequential_devices=(),
    sequential_data_parallel=None,
    exclusive=False,
)


def another(default: Any) -> Any:
    """A value that is not the default."""
    return not default if isinstance(default, bool) else default * 2


@pytest.mark.parametrize("config", CONFIGS)
def test_defaults_are_the_old_ones_and_do_not_warn(config: Config) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = config()
    assert {option: getattr(made, option) for option in DEFAULTS[config]} == DEFAULTS[config]


@pytest.mark.parametrize("config", CONFIGS)
def test_an_unknown_option_is_an_error(config: Config) -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        config(no_such_option=1)


@pytest.mark.parametrize(("config", "option"), WITHOUT_EFFECT)
def test_an_option_without_effect_is_accepted_with_a_warning_that_names_it(config: Config, option: str) -> None:
    value = another(getattr(config(), option))
    with pytest.warns(UserWarning, match=rf"{config.__name__}\.{option} has no effect: ") as caught:
        assert getattr(config(**{option: value}), option) == value
    assert len(caught) == 1
    assert caught[0].filename == __file__  # where the option was written, not inside the package


@pytest.mark.parametrize("config", CONFIGS)
def test_options_with_an_effect_do_not_warn(config: Config) -> None:
    options = {
        option.name: another(getattr(config(), option.name) or "x")
        for option in dataclasses.fields(config)
        if option.name not in config.without_effect
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config(**options)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "simultaneous"),
        ({"sequential_passes": True}, "sequential"),
        ({"parallel_encoding": False}, "sequential"),
        ({"exclusive_mode": True}, "exclusive"),
        ({"sequential_passes": True, "exclusive_mode": True}, "exclusive"),
    ],
)
def test_flags_become_one_mode(options: dict[str, bool], mode: str) -> None:
    assert EnsembleConfig(**options).mode == mode  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "parallelism"),
    [
        ({"sequential_passes": True}, "replicas"),
        ({"sequential_passes": True, "sequential_data_parallel": False}, "none"),
        ({"sequential_passes": True, "sequential_data_parallel": "nn.DataParallel"}, "data-parallel"),
        ({"exclusive_mode": True}, "replicas"),
        ({"exclusive_mode": True, "sequential_data_parallel": False}, "replicas"),
        ({"exclusive_mode": True, "sequential_data_parallel": "nn.DataParallel"}, "data-parallel"),
        ({}, "replicas"),
    ],
)
def test_the_active_model_is_wrapped_with_data_parallelism(options: dict[str, Any], parallelism: str) -> None:
    """Specified: "SHOULD wrap the active model with data parallelism when multiple Kaggle GPUs are present"."""
    assert EnsembleConfig(**options).parallelism == parallelism


def test_another_word_for_data_parallelism_is_refused() -> None:
    with pytest.raises(UsageError, match=r"EnsembleConfig.sequential_data_parallel DataParallel: .* nn.DataParallel"):
        EnsembleConfig(sequential_data_parallel="DataParallel")


def test_a_batch_size_that_was_given_can_be_told_from_the_default() -> None:
    """Specified: "per-model tuning of batch hints"; the default 32 was never a limit."""
    default, given = KaggleGPUConfig().base_batch_size, KaggleGPUConfig(base_batch_size=32).base_batch_size
    assert default == given == 32
    assert (isinstance(default, DefaultInt), isinstance(given, DefaultInt)) == (True, False)


@pytest.mark.xfail("batch_rows" not in BATCH_OPTIONS, reason="the engine has no option batch_rows yet", strict=False)
def test_a_batch_size_that_was_given_is_the_most_rows_of_a_batch() -> None:
    """Specified: "reduces the per-batch chunk count": from the size that was given, if one was."""
    configs = (KaggleGPUConfig(base_batch_size=8), KaggleGPUConfig())
    made = [hardware_options(config, QUIET, force_cpu=False) for config in configs]
    assert [options["batch_rows"] for options in made] == [8, None]


def test_the_environment_adds_to_a_config_and_leaves_the_original_alone() -> None:
    asked = EnsembleConfig()
    told = dataclasses.replace(
        QUIET, sequential=True, exclusive=True, sequential_devices=("1", "0"), sequential_data_parallel=False
    )
    both = asked.with_environment(told)
    assert (both.sequential_passes, both.exclusive_mode) == (True, True)
    assert (both.preferred_devices, both.sequential_data_parallel) == (("1", "0"), False)
    assert asked == EnsembleConfig()


def test_a_config_goes_before_a_silent_environment() -> None:
    asked = EnsembleConfig(sequential_passes=True, preferred_devices=["cuda:1"], sequential_data_parallel=False)
    assert asked.with_environment(QUIET) == asked


def test_devices_of_the_config_go_before_those_of_the_environment() -> None:
    told = dataclasses.replace(QUIET, sequential_devices=("0",))
    assert EnsembleConfig(preferred_devices=["1"]).with_environment(told).preferred_devices == ["1"]


def test_a_warning_is_not_repeated_when_the_environment_is_looked_at() -> None:
    with pytest.warns(UserWarning, match="weighting_strategy"):
        asked = EnsembleConfig(weighting_strategy="adaptive")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked.with_environment(QUIET)


def test_no_variable_means_a_silent_environment() -> None:
    assert old_environment() == QUIET


@pytest.mark.parametrize(("word", "meaning"), [("1", True), ("true", True), ("ON", True), ("0", False), ("no", False)])
@pytest.mark.parametrize(
    ("variable", "field"),
    [
        ("EMBEDDER_FORCE_CPU", "force_cpu"),
        ("EMBEDDER_REFRESH_CACHE", "refresh_cache"),
        ("EMBEDDER_SEQUENTIAL_ENSEMBLE", "sequential"),
        ("EMBEDDER_SEQUENTIAL_DATA_PARALLEL", "sequential_data_parallel"),
        ("EMBEDDER_EXCLUSIVE_ENSEMBLE", "exclusive"),
    ],
)
def test_variables_are_switches(
    variable: str, field: str, word: str, meaning: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, word)
    assert getattr(old_environment(), field) is meaning


def test_a_variable_lists_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDER_SEQUENTIAL_DEVICES", "cuda:1, cuda:0,cpu")
    assert old_environment().sequential_devices == ("cuda:1", "cuda:0", "cpu")
