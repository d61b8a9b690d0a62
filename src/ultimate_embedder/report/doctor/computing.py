"""torch, the driver, the devices, and what each can really do."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from ultimate_embedder.devices import VISIBLE_VARIABLE, CardFacts, Forward, Outcome, TorchFacts, Trial, Trials
from ultimate_embedder.machine import has_vnni
from ultimate_embedder.models import native
from ultimate_embedder.report.doctor.check import Check, State
from ultimate_embedder.report.doctor.packages import check_torch_version
from ultimate_embedder.report.doctor.place import Place

GIB = 1 << 30
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
RUNTIMES = {"onnx": "onnxruntime", "openvino": "openvino"}  # --backend, and the module that it needs beside onnx
GET_TORCH = "install the torch for this machine: https://pytorch.org/get-started/locally"
FIRST_WITH_BF16 = (8, 0)
VERSION_BYTES = 4096


def check_torch(outcome: Outcome) -> Check:
    """Whether torch can be imported, its version and what it was built for."""
    if not isinstance(outcome.value, TorchFacts):
        missing = check_torch_version()
        return Check("torch", "problem", missing or f"cannot be imported: {outcome.failure}", GET_TORCH)
    facts = outcome.value
    found = f"{facts.version}, {facts.build}; kernels for {facts.cpu_kernels} on the CPU, {facts.threads} threads"
    if problem := check_torch_version():
        return Check("torch", "problem", f"{found}; {problem}", GET_TORCH)
    return Check("torch", "ok", found)


def check_driver(place: Place, facts: TorchFacts) -> Check:
    """The driver of cards against what torch sees of them."""
    version, installed = _driver_version(place), _installed_cards(place)
    found = f"NVIDIA {version}, " if version else "no NVIDIA driver, "
    found += f"torch sees {len(facts.cards) or 'no'} {'card' if len(facts.cards) == 1 else 'cards'}"
    hidden = place.environment.get(VISIBLE_VARIABLE)
    if hidden is not None:
        found += f"; {VISIBLE_VARIABLE}={hidden}"
    if version and not facts.has_card_support:
        return Check("driver", "problem", f"{found}: this torch was built for CPUs only", GET_TORCH)
    if version and not facts.cards and hidden is None:
        why = facts.warnings[0] if facts.warnings else "torch does not say why"
        return Check("driver", "problem", f"{found}: {why}", f"update the driver, or {GET_TORCH}")
    if len(facts.cards) < installed:
        found += f", of {installed} in the machine"
        remedy = f"unset {VISIBLE_VARIABLE}" if hidden is not None else "in a container: docker run --gpus all"
        return Check("driver", "warning", found, remedy)
    if facts.warnings and not facts.cards and facts.has_card_support:
        return Check("driver", "ok", f"{found} ({facts.warnings[0]})")
    return Check("driver", "ok", found)


def _driver_version(place: Place) -> str | None:
    try:
        with open(place.nvidia / "version", encoding="utf-8", errors="replace") as file:
            words = file.read(VERSION_BYTES).split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), "of unknown version")


def _installed_cards(place: Place) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in (place.nvidia / "gpus").iterdir())
    return 0


def check_devices(facts: TorchFacts, trials: Trials) -> Iterator[Check]:
    """A short forward on each device, in each precision and runtime."""
    for card in facts.cards:
        yield _check_card(card)
        yield from _check_precisions(card.device, card, facts, trials)
    yield from _check_precisions("cpu", None, facts, trials)
    yield _check_kernels()
    for backend, module in RUNTIMES.items():
        if importlib.util.find_spec(module) and importlib.util.find_spec("onnx"):
            outcome = trials.run(Trial("forward", (backend, "cpu", "int8")))
            check = _as_check(f"cpu int8 {backend}", outcome, "warning", f"do not use --backend {backend} here")
            if backend == "openvino" and check.state == "ok" and not has_vnni():
                check = Check(check.name, "ok", f"{check.found}; no VNNI: --precision int8 is no faster than fp32 here")
            yield check


def _check_kernels() -> Check:
    """Whether there are kernels of our own; they are compiled and tried now unless that is done."""
    kernels = native()
    if kernels is None:
        missing = "none: they are switched off, there is no C++ compiler, or this processor is of another kind"
        return Check("cpu kernels", "ok", f"{missing}; torch computes, and int8 is OpenVINO's")
    int8 = "and int8" if kernels.has_int8 else "only: int8, which needs AVX-512 VNNI, is OpenVINO's"
    return Check("cpu kernels", "ok", f"compiled and tried, for fp32 {int8}")


def _check_card(card: CardFacts) -> Check:
    capability = ".".join(map(str, card.capability))
    memory = f"{card.free_bytes / GIB:.1f} GiB free of {card.total_bytes / GIB:.1f}"
    found = f"{card.name}, capability {capability}, {memory}"
    if card.free_bytes < card.total_bytes / 2:
        return Check(card.device, "warning", found, "another process uses it: 'nvidia-smi' names it")
    return Check(card.device, "ok", found)


def _check_precisions(device: str, card: CardFacts | None, facts: TorchFacts, trials: Trials) -> Iterator[Check]:
    fp32_ms = float("inf")
    for precision in PRECISIONS:
        outcome = trials.run(Trial("forward", ("torch", device, precision)))
        state: State = "problem" if precision == "fp32" else "warning"
        check = _as_check(f"{device} {precision}", outcome, state, _remedy(precision, card, facts))
        if precision == "bf16" and card is not None and card.capability < FIRST_WITH_BF16 and not outcome.failure:
            note = "--precision auto takes fp16 here; in code of your own, take fp16 too"
            check = Check(check.name, "ok", f"{check.found}, emulated: this card has no bf16", note)
        if isinstance(outcome.value, Forward) and card is None:
            milliseconds = outcome.value.milliseconds
            fp32_ms = milliseconds if precision == "fp32" else fp32_ms
            if precision == "bf16" and milliseconds > fp32_ms:
                found = (
                    f"{check.found}, {milliseconds / fp32_ms:.1f} times as long as fp32: do not use --precision bf16"
                )
                check = Check(check.name, "ok", found)
        yield check


def _as_check(name: str, outcome: Outcome, failed: State, remedy: str) -> Check:
    if outcome.failure is not None:
        return Check(name, failed, outcome.failure, remedy)
    return Check(name, "ok", f"works, {outcome.value.milliseconds:.1f} ms")


def _remedy(precision: str, card: CardFacts | None, facts: TorchFacts) -> str:
    if precision == "fp32":
        if card is None:
            return f"nothing can be computed. {GET_TORCH[0].upper()}{GET_TORCH[1:]}"
        return f"this torch has kernels for {facts.card_kernels}. Use --devices cpu, or {GET_TORCH}"
    if precision == "fp16" and card is not None:
        return "use --precision fp32"
    if precision == "bf16":
        return "do not use --precision bf16"
    return "this program does not use it here; code of your own should not either"
