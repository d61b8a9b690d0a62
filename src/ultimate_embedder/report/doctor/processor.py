"""The processor and the memory of the host."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from ultimate_embedder.devices import FEATURES, Outcome, Trial, Trials
from ultimate_embedder.machine import available_bytes, processor_flags, usable_cores
from ultimate_embedder.report.doctor.check import Check
from ultimate_embedder.report.doctor.place import Place

GIB = 1 << 30
LITTLE_MEMORY_BYTES = 2 * GIB  # torch, the libraries and a small model take one
MEMORY_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of the two versions of control groups
ARM = "asimd"  # of every ARM processor of 64 bits; the other flags have other meanings elsewhere
# of ARM: announced by the system, and tried by the forwards alone
ARM_FEATURES = {ARM: "NEON", "asimddp": "dot product", "i8mm": "I8MM", "bf16": "BF16", "sve": "SVE", "sme": "SME"}


def check_cpu_features(place: Place, trials: Trials) -> Check:
    """What the processor announces, and whether it does it: some virtual machines announce AMX and die of it."""
    flags = processor_flags(place.cpu_info)
    if flags is None:
        return Check("cpu features", "ok", f"{platform.machine()}; this system does not announce features in a file")
    if ARM in flags:
        arm = [name for flag, name in ARM_FEATURES.items() if flag in flags]
        return Check("cpu features", "ok", f"announced: {', '.join(arm)}")
    announced = [feature for feature in FEATURES if feature.flag in flags]
    absent = [feature.name for feature in FEATURES if feature.flag not in flags]
    tried = {each.name: trials.run(Trial("instruction", (each.name,))) for each in announced}
    found = f"announced: {', '.join(tried) or 'none of those that matter'}; "
    found += f"tried: {_tried(tried)}"
    if absent:
        found += f"; not announced: {', '.join(absent)}"
    if broken := [name for name, outcome in tried.items() if outcome.died]:
        return Check("cpu features", "warning", found, _avoid(broken))
    if not any(feature.name == "AVX2" for feature in announced):
        return Check("cpu features", "warning", found, "without AVX2 a CPU is many times slower: use another machine")
    return Check("cpu features", "ok", found)


def _tried(tried: dict[str, Outcome]) -> str:
    failed = [f"{name}: {outcome.failure}" for name, outcome in tried.items() if outcome.failure]
    if not failed:
        return "all work" if tried else "nothing"
    return "; ".join([*failed, "the others work"] if len(failed) < len(tried) else failed)


def _avoid(broken: list[str]) -> str:
    """The setting that keeps torch and oneDNN from using what is broken."""
    if all(name.startswith("AMX") for name in broken):
        setting = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    elif "AVX2" in broken:
        setting = "ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default"
    else:
        setting = "ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2"
    return f"export {setting}; the lines 'cpu ...' say what works all the same"


def check_threads(place: Place) -> Check:
    """Cores of the machine, and how many of them this process may use."""
    cores, usable = os.cpu_count() or 1, usable_cores()
    found = f"{usable} of {cores} cores may be used (by affinity and container quota)"
    given = place.environment.get("OMP_NUM_THREADS")
    if not given:
        return Check("threads", "ok", f"{found}; OMP_NUM_THREADS is not set")
    found += f"; OMP_NUM_THREADS={given}"
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", given):
        return Check("threads", "warning", f"{found} is not a number of threads", "unset OMP_NUM_THREADS")
    if int(given.partition(",")[0]) > usable:
        return Check("threads", "warning", f"{found} is more than there are cores", "unset OMP_NUM_THREADS")
    return Check("threads", "ok", found)


def check_memory(place: Place) -> Check:
    """Memory of the host, what is free of it, and the limit of a container."""
    import psutil

    total, free = psutil.virtual_memory().total, available_bytes()
    found = f"{free / GIB:.1f} GiB available of {total / GIB:.1f}"
    limit = _container_limit(place.cgroup)
    if limit is not None and limit < total:
        found += f"; this container may use {limit / GIB:.1f} GiB"
        free = min(free, limit)
    if free < LITTLE_MEMORY_BYTES:
        return Check(
            "memory", "warning", found, "close other programs, or raise the limit: models are loaded here first"
        )
    return Check("memory", "ok", found)


def _container_limit(cgroup: Path) -> int | None:
    for name in MEMORY_LIMITS:
        try:
            word = (cgroup / name).read_text("utf-8").strip()
        except (OSError, ValueError):
            continue
        if word.isascii() and word.isdigit():
            return int(word)
    return None
