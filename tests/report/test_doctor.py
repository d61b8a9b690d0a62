from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.hub_here import use_hub_here
from tests.support.hub_server import HubServer
from ultimate_embedder.config import hub_access, known_environment
from ultimate_embedder.devices import VISIBLE_VARIABLE, CardFacts, Forward, Outcome, TorchFacts, Trials
from ultimate_embedder.report.doctor import Check, Examination, Place, check_lines, computing, examine, packages, totals
from ultimate_embedder.report.doctor.processor import check_cpu_features, check_memory, check_threads
from ultimate_embedder.report.doctor.storage import check_cache, check_disk, check_hub, check_models
from ultimate_embedder.report.doctor.surroundings import check_kaggle

BROKEN = "tests.support.broken_machine"
GIB = 1 << 30
T4 = CardFacts("card:0", "Tesla T4", (7, 5), 15 * GIB, 14 * GIB)
P100 = CardFacts("card:0", "Tesla P100-PCIE-16GB", (6, 0), 16 * GIB, 15 * GIB)


def facts(*cards: CardFacts, support: bool = True, warnings: tuple[str, ...] = ()) -> TorchFacts:
    kernels = "torch 2.13: sm_75 sm_80"
    return TorchFacts("2.13", "for cards", support, "AVX2", 2, kernels, cards, warnings)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine with an x86 processor that announces AMX, and nothing else."""
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags\t\t: fpu sme avx2 avx512f amx_bf16 amx_int8\n")
    return Place(
        output=tmp_path,
        environment={},
        home=tmp_path / "home" / "alice",
        cpu_info=tmp_path / "cpuinfo",
        cgroup=tmp_path / "cgroup",
        nvidia=tmp_path / "nvidia",
        kaggle=tmp_path / "kaggle",
        trials=BROKEN,
    )


def with_driver(place: Place, cards: int) -> Place:
    (place.nvidia / "gpus").mkdir(parents=True)
    (place.nvidia / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\n")
    for number in range(cards):
        (place.nvidia / "gpus" / f"0000:0{number}").touch()
    return place


def with_environment(place: Place, **environment: str) -> Place:
    return Place(**{**vars(place), "environment": environment})


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_a_processor_that_dies_of_what_it_announces_is_a_line_with_a_remedy(place: Place) -> None:
    with Trials(BROKEN) as trials:
        check = check_cpu_features(place, trials)
    assert (check.name, check.state) == ("cpu features", "warning")
    assert check.found.startswith("announced: AVX2, AVX-512, AMX BF16, AMX INT8; tried: AMX BF16: the process died of")
    assert "(illegal instruction); the others work; not announced: AVX-VNNI, " in check.found
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in check.remedy


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_a_machine_with_a_broken_torch_is_examined_to_the_end(place: Place, tmp_path: Path) -> None:
    reported: list[Check] = []
    found = examine(tmp_path, cache_dir=tmp_path / "hub", report=reported.append, place=place)
    assert tuple(reported) == found.checks
    checks = {check.name: check for check in found.checks}
    assert [check.name for check in found.problems] == ["torch"]
    assert checks["torch"].found.startswith("cannot be imported: OSError: libtorch_cpu.so")
    assert checks["torch"].remedy
    assert {"python", "transformers", "memory", "threads", "models", "hub", "disk speed", "text"} <= set(checks)
    assert len(checks) == len(found.checks)
    assert [check.name for check in found.checks if not check.found] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cpuinfo"]  # what was written has been removed


def test_the_table_fits_into_80_columns_and_hides_no_text() -> None:
    long = Check("torch", "problem", "x" * 200 + "\x1b[2J\nok       forged", "pip install --upgrade torch " * 6)
    lines = [*check_lines(Check("python", "ok", "3.12")), *check_lines(long)]
    assert max(map(len, lines)) <= 80
    assert lines[0] == "ok       python                 3.12"
    assert not any("\x1b" in line or line.startswith("ok       forged") for line in lines)
    assert sum(line.count("x") for line in lines) == 201  # and that of the escape
    assert totals(Examination((Check("python", "ok", "3.12"), long))) == "1 ok, 0 warnings, 1 problem"


def test_json_has_the_four_fields_of_each_check() -> None:
    found = json.loads(Examination((Check("python", "ok", "3.12"),)).as_json())
    assert found["schema"] == 1
    assert found["checks"] == [{"name": "python", "state": "ok", "found": "3.12", "remedy": ""}]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{home}/hub", "~/hub"),
        ("{home}", "~"),
        ("{home}bert/hub", "{home}bert/hub"),
        ("/data/alice/out", "/data/USER/out"),
        ("https://alice:secret@hub.example/x", "https://hub.example/x"),
    ],
)
def test_neither_user_nor_password_is_shown(place: Place, text: str, shown: str) -> None:
    text, shown = (each.replace("{home}", str(place.home)) for each in (text, shown))
    assert place.without_private(Check("a", "ok", text, text)) == Check("a", "ok", shown, shown)


def test_of_secrets_only_that_they_are_set_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MY_OWN", "private")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    known = known_environment()
    assert (known["HF_TOKEN"], known["OMP_NUM_THREADS"]) == ("(set)", "2")
    assert not {"hf_secret", "private"} & set(known.values())


def test_a_package_outside_its_range_is_a_problem_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = packages._version
    monkeypatch.setattr(packages, "_version", lambda name: "4.9" if name == "transformers" else real(name))
    checks = {check.name: check for check in packages.check_packages()}
    assert checks["transformers"].state == "problem"
    assert checks["transformers"].found == "transformers 4.9 is outside >=5.0"
    assert checks["transformers"].remedy == "pip install --upgrade 'transformers>=5.0'"
    assert checks["other packages"].state == "ok"


def test_an_extra_that_is_not_installed_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    real = packages._version
    monkeypatch.setattr(packages, "_version", lambda name: None if name == "openvino" else real(name))
    check = next(check for check in packages.check_extras() if check.name == "extra openvino")
    assert check.found == "openvino not installed; optional, for --backend openvino"
    assert (check.state, check.remedy) == ("ok", "pip install 'ultimate-embedder[openvino]'")


def test_a_torch_for_cpus_beside_a_card_is_a_problem(place: Place) -> None:
    check = computing.check_driver(with_driver(place, 1), facts(support=False))
    assert (check.state, check.found) == (
        "problem",
        "NVIDIA 550.54.15, torch sees no cards: this torch was built for CPUs only",
    )


def test_a_driver_that_does_not_answer_is_named_in_the_words_of_torch(place: Place) -> None:
    check = computing.check_driver(with_driver(place, 1), facts(warnings=("The driver is too old",)))
    assert (check.state, check.found.endswith(": The driver is too old")) == ("problem", True)


def test_a_hidden_card_is_a_warning(place: Place) -> None:
    hidden = with_environment(with_driver(place, 2), **{VISIBLE_VARIABLE: "0"})
    check = computing.check_driver(hidden, facts(T4))
    assert check.state == "warning"
    assert check.found.endswith(f"torch sees 1 card; {VISIBLE_VARIABLE}=0, of 2 in the machine")
    assert check.remedy == f"unset {VISIBLE_VARIABLE}"


def test_a_torch_that_is_there_is_ok() -> None:
    assert computing.check_torch(Outcome(facts())).state == "ok"


def kaggle(place: Place, output: str = "working/out", has_models: bool = True, *cards: CardFacts) -> dict[str, Check]:
    (place.kaggle / "working").mkdir(parents=True, exist_ok=True)
    there = Place(**{**vars(place), "output": place.kaggle / output})
    return {check.name: check for check in check_kaggle(there, facts(*cards), has_models)}


def test_without_kaggle_nothing_is_said_of_it(place: Place) -> None:
    assert list(check_kaggle(place, facts(T4), True)) == []


def test_two_t4s_are_as_it_should_be(place: Place) -> None:
    assert {check.state for check in kaggle(place, "working/out", True, T4, T4).values()} == {"ok"}


@pytest.mark.parametrize(
    ("cards", "state"), [((), "warning"), ((T4,), "warning"), ((P100,), "problem"), ((P100, P100), "problem")]
)
def test_other_accelerators_of_kaggle_have_a_remedy(place: Place, cards: tuple[CardFacts, ...], state: str) -> None:
    check = kaggle(place, "working/out", True, *cards)["kaggle accelerator"]
    assert (check.state, check.remedy) == (state, "Settings > Accelerator > GPU T4 x2")


def test_on_kaggle_an_output_outside_of_working_is_a_warning(place: Place) -> None:
    check = kaggle(place, "elsewhere", True, T4, T4)["kaggle working"]
    assert (check.state, check.remedy) == ("warning", f"-o {place.kaggle / 'working'}/out")


def test_on_kaggle_a_missing_model_points_to_the_internet_switch(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    online = Place(**{**vars(place), "access": hub_access()})
    check = kaggle(online, "working/out", False, T4, T4)["kaggle internet"]
    assert (check.state, "Settings > Internet" in check.remedy) == ("warning", True)


def test_bf16_on_a_t4_is_said_to_be_emulated() -> None:
    class Works(Trials):
        def run(self, trial: object) -> Outcome:
            return Outcome(Forward(1.0))

    checks = {check.name: check for check in computing.check_devices(facts(T4), Works())}
    assert checks["card:0 bf16"].found == "works, 1.0 ms, emulated: this card has no bf16"
    assert "fp16" in checks["card:0 bf16"].remedy


def test_a_card_that_cannot_compute_in_fp32_is_a_problem() -> None:
    class Fails(Trials):
        def run(self, trial: object) -> Outcome:
            return Outcome(failure="no kernel image is available")

    checks = {check.name: check for check in computing.check_devices(facts(P100), Fails())}
    assert checks["card:0 fp32"].state == "problem"
    assert "sm_75 sm_80" in checks["card:0 fp32"].remedy
    assert (checks["card:0 fp16"].state, checks["card:0 fp16"].remedy) == ("warning", "use --precision fp32")


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_memory_limit_of_a_container_counts(place: Place, name: str) -> None:
    limit = place.cgroup / name
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{GIB}\n")
    check = check_memory(place)
    assert (check.state, check.found.endswith("this container may use 1.0 GiB")) == ("warning", True)


@pytest.mark.parametrize(("given", "state"), [("1", "ok"), ("", "ok"), ("many", "warning"), ("100000", "warning")])
def test_a_wrong_number_of_threads_is_a_warning(place: Place, given: str, state: str) -> None:
    assert check_threads(with_environment(place, OMP_NUM_THREADS=given)).state == state


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_a_problem(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert [check.state for check in check_disk(tmp_path)] == ["ok", "problem"]
        assert check_cache(hub_access(cache_dir=tmp_path)).state == "warning"
    finally:
        tmp_path.chmod(0o700)


def test_the_disk_of_a_folder_that_is_not_there_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    room, speed = check_disk(tmp_path / "new" / "out")
    assert room.found.endswith(f"GB free in {tmp_path}")
    assert speed.found.endswith("MB/s, written and synced")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert list(check_disk(tmp_path / "file")) == [
        Check("disk room", "problem", f"{tmp_path / 'file'} is not a folder", "choose another --output")
    ]


def test_the_cache_is_measured_without_counting_links(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(bytes(3_000_000))
    (tmp_path / "link").symlink_to(tmp_path / "blob")
    assert f"{tmp_path}, 3 MB; writable, " in check_cache(hub_access(cache_dir=tmp_path)).found


def test_an_incomplete_model_is_named_with_the_command_that_completes_it(tmp_path: Path) -> None:
    commit = "0" * 40
    repo = tmp_path / "models--BAAI--bge-m3"
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    check = check_models(hub_access(cache_dir=tmp_path))
    assert (check.state, check.remedy) == ("warning", "ultimate-embedder models pull bge-m3")


def test_the_hub_is_asked_only_if_that_is_wanted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    online = Place(**{**vars(place), "access": hub_access()})
    assert check_hub(online, online=False).state == "ok"
    check = check_hub(online, online=True)
    assert check.state == "warning"
    assert "from http://127.0.0.1:1: the hub cannot be reached" in check.found


def test_a_hub_that_answers_is_named_with_the_commit_of_the_default_model(
    place: Place, monkeypatch: pytest.MonkeyPatch, minilm: Path
) -> None:
    with HubServer() as hub:
        commit = hub.publish("sentence-transformers/all-MiniLM-L6-v2", minilm)
        use_hub_here(hub.url, place.output, monkeypatch)
        check = check_hub(Place(**{**vars(place), "access": hub_access()}), online=True)
    assert (check.state, check.found) == ("ok", f"{hub.url} answers (all-minilm-l6-v2 is at {commit[:12]})")
