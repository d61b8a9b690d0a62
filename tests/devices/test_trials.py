from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from ultimate_embedder.devices import FEATURES, Outcome, Trial, Trials

BROKEN = "tests.support.broken_machine"
CPU_INFO = Path("/proc/cpuinfo")

posix = pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")


@posix
def test_an_illegal_instruction_is_an_answer_and_the_next_trial_goes_on() -> None:
    with Trials(BROKEN) as trials:
        died = trials.run(Trial("instruction", ("AMX BF16",)))
        assert trials.run(Trial("instruction", ("AVX2",))) == Outcome()
    assert died == Outcome(failure="the process died of SIGILL (illegal instruction)", died=True)


@posix
def test_a_trial_that_hangs_is_ended() -> None:
    with Trials(BROKEN, timeout_s=0.2) as trials:
        assert trials.run(Trial("forward", ("torch", "cpu", "fp16"))).failure == "no answer within 0.2 s"


def test_the_last_words_of_a_child_that_gives_up_are_kept() -> None:
    with Trials(BROKEN) as trials:
        outcome = trials.run(Trial("forward", ("torch", "cpu", "bf16")))
    assert outcome.failure == "the process ended with exit code 3: the library gives up"
    assert outcome.died


def test_an_exception_in_a_trial_does_not_end_the_child() -> None:
    with Trials() as trials:
        outcome = trials.run(Trial("forward", ("torch", "no-such-device", "fp32")))
        assert not outcome.died
        assert outcome.failure is not None
        assert "no-such-device" in outcome.failure
        fp32, int8 = (trials.run(Trial("forward", ("torch", "cpu", each))) for each in ("fp32", "int8"))
    assert (fp32.failure, int8.failure) == (None, None)
    assert fp32.value.milliseconds > 0


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not CPU_INFO.exists(), reason="the instructions are those of x86 on Linux"
)
def test_a_processor_can_do_what_it_announces() -> None:
    flags = CPU_INFO.read_text().partition("flags")[2].partition("\n")[0].split()
    announced = [each.name for each in FEATURES if each.flag in flags and not each.in_tiles]
    with Trials() as trials:
        assert {name: trials.run(Trial("instruction", (name,))) for name in announced} == dict.fromkeys(
            announced, Outcome()
        )
