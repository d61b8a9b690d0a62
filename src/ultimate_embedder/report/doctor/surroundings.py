"""What the program runs in: compiler, terminal or notebook, settings, Kaggle."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

from ultimate_embedder.devices import TorchFacts
from ultimate_embedder.report.doctor.check import Check
from ultimate_embedder.report.doctor.place import Place
from ultimate_embedder.report.doctor.storage import LITTLE_ROOM_BYTES
from ultimate_embedder.report.progress import in_notebook

COMPILER = "g++"
COMPILER_TIMEOUT_S = 20
P100, T4 = (6, 0), (7, 5)
P100_KERNELS = "sm_60"  # as torch lists what it was built for
CHOOSE_T4S = "Settings > Accelerator > GPU T4 x2"


def check_compiler() -> Check:
    """The compiler of simulated devices, and of kernels for this processor."""
    path = shutil.which(COMPILER)
    if path is None:
        found = f"no {COMPILER}; needed for simulated devices, and for faster fp32 on some CPUs"
        return Check("compiler", "ok", found, f"apt-get install {COMPILER}, or dnf install gcc-c++")
    try:
        done = subprocess.run(
            [path, "--version"],
            capture_output=True,
            text=True,
            timeout=COMPILER_TIMEOUT_S,
            check=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Check("compiler", "warning", f"{COMPILER} does not run: {error}", f"install {COMPILER} again")
    return Check("compiler", "ok", (done.stdout.splitlines() or [COMPILER])[0])


def check_text(place: Place) -> Check:
    """Whether any text can be shown and any file named."""
    stdout = getattr(sys.stdout, "encoding", None) or "utf-8"
    found = f"stdout {stdout}, file names {sys.getfilesystemencoding()}"
    if "utf" in stdout.lower() and "utf" in sys.getfilesystemencoding().lower():
        return Check("text", "ok", found)
    remedy = "unset PYTHONIOENCODING" if "PYTHONIOENCODING" in place.environment else "export PYTHONUTF8=1"
    return Check("text", "warning", f"{found}: other characters are shown as escapes", remedy)


def check_display(place: Place) -> Check:
    """Terminal, notebook, or neither."""
    if in_notebook():
        found = "notebook"
    elif "JPY_PARENT_PID" in place.environment:
        found = "a command in a notebook: a line of progress at intervals"
    elif sys.stderr is not None and sys.stderr.isatty():
        found = "terminal"
    else:
        found = "no terminal: a line of progress at intervals"
    hosts = {"Kaggle": place.is_kaggle, "Colab": "COLAB_RELEASE_TAG" in place.environment}
    return Check("display", "ok", "; ".join([found, *(name for name, here in hosts.items() if here)]))


def check_settings(place: Place) -> Check:
    """The environment variables that change what a run does."""
    given = ", ".join(f"{name}={value}" for name, value in sorted(place.environment.items()))
    return Check("settings", "ok", given or "no environment variables of this program or its libraries")


def check_kaggle(place: Place, facts: TorchFacts | None, has_models: bool) -> Iterator[Check]:
    """What goes wrong on Kaggle most often."""
    if not place.is_kaggle:
        return
    yield _check_accelerator(facts)
    yield _check_internet(place, has_models)
    yield _check_working(place)


def _check_accelerator(facts: TorchFacts | None) -> Check:
    name, cards = "kaggle accelerator", facts.cards if facts else ()
    if not cards:
        return Check(name, "warning", "no card: the CPU is many times slower", CHOOSE_T4S)
    found = " + ".join(card.name for card in cards)
    if facts and any(card.capability == P100 for card in cards) and P100_KERNELS not in facts.card_kernels.split():
        return Check(name, "problem", f"{found}: no kernels for it in {facts.card_kernels}", CHOOSE_T4S)
    if len(cards) == 1 and cards[0].capability == T4:
        return Check(name, "warning", f"{found}: one card, where there could be two for the same quota", CHOOSE_T4S)
    return Check(name, "ok", found)


def _check_internet(place: Place, has_models: bool) -> Check:
    name = "kaggle internet"
    if has_models or place.access.offline:
        return Check(name, "ok", "not needed for the models that are here", "use --offline, so that none is asked for")
    remedy = "attach models as a dataset and use --offline, or Settings > Internet on, and 'doctor --online'"
    return Check(name, "warning", "the default model is not here, and internet is often off", remedy)


def _check_working(place: Place) -> Check:
    name, working = "kaggle working", place.kaggle / "working"
    try:
        free = shutil.disk_usage(working).free
    except OSError as error:
        return Check(name, "warning", f"{working}: {error.strerror}", "write to a folder that has room")
    found = f"{free / 1e9:,.1f} GB free in {working}"
    if free < LITTLE_ROOM_BYTES:
        return Check(name, "warning", found, "remove outputs that are not needed: there are 20 GB in all")
    if working.resolve() not in (place.output.resolve(), *place.output.resolve().parents):
        return Check(
            name, "warning", f"{found}; the output is elsewhere, and ends with the session", f"-o {working}/out"
        )
    return Check(name, "ok", found)
