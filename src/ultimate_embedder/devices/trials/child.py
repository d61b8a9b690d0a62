"""The child: does one trial after the other, until its input ends or one of them kills it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ultimate_embedder.devices.driver_errors import in_one_line
from ultimate_embedder.devices.nvidia import nvidia_build, nvidia_cards, nvidia_vendor
from ultimate_embedder.devices.trials.features import try_feature
from ultimate_embedder.devices.trials.trial import CardFacts, Job, Outcome, TorchFacts, Trial, TrialError
from ultimate_embedder.messages import claim_pipes, leave, read_message, write_message


def main() -> None:
    """Answer every trial."""
    stdin, channel = claim_pipes()
    _leave_no_core_file()
    while (trial := read_message(stdin)) is not None:
        write_message(channel, attempt(trial))


def attempt(trial: Trial) -> Outcome:
    """Do a trial in this process."""
    try:
        return Outcome(JOBS[trial.job](*trial.arguments))
    except TrialError as error:
        return Outcome(failure=str(error))
    except Exception as error:  # noqa: BLE001 - whatever a broken installation raises is the answer
        return Outcome(failure=f"{type(error).__name__}: {in_one_line(error)}")


def _describe_torch() -> TorchFacts:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        import torch

        cards = tuple(CardFacts(*each) for each in nvidia_cards())
    build = nvidia_build()
    return TorchFacts(
        version=str(torch.__version__),  # it is of a class of torch's, which whoever reads the answer would import
        build=build or "for CPUs only",
        has_card_support=build is not None,
        cpu_kernels=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        card_kernels=nvidia_vendor().kernels() if cards else "",
        cards=cards,
        # where no driver answers, torch warns and sees no cards: what it says is why
        warnings=tuple(in_one_line(each.message) for each in said if isinstance(each.message, UserWarning)),
    )


def _run_forward(runtime: str, device: str, precision: str) -> Any:
    from ultimate_embedder.devices.trials.forward import run_forward

    return run_forward(runtime, device, precision)


JOBS: dict[Job, Callable[..., Any]] = {
    "instruction": try_feature,
    "torch": _describe_torch,
    "forward": _run_forward,
}


def _leave_no_core_file() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


if __name__ == "__main__":
    main()
    leave(0)
