"""Torture: seeded runs on simulated devices that are too small, shared, failing or dying. Every one must complete.

    python -m tests.simulated.torture --cases 1000
    python -m tests.simulated.torture --cases 1000 --dying

A case is a model, one to three devices, a workload and what goes wrong. Afterwards: every vector is there and is
the right one, the first device never held more than its ceiling, nothing is left on any device, and no wait is missing.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.support.tiny_models import ARCHITECTURES, Architecture, tiny_model
from ultimate_embedder.config import Precision
from ultimate_embedder.devices import MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.events import BatchEncoded, CollectionFinished, Event, LeaseAcquired, Mitigated
from ultimate_embedder.models import Encoder, load_encoder, resolve_model
from ultimate_embedder.options import make_config
from ultimate_embedder.pipeline import run
from ultimate_embedder.stop import StopSwitch

MiB = 1 << 20
ROOMY = 4096 * MiB
NO_ROOM = (
    "",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDA driver error: out of memory",
)
DEATHS = (
    "CUDA error: unspecified launch failure",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: GPU 0000:00:04.0 has fallen off the bus",
)
PER_PROCESS = 100  # cases; one that kills its process takes no more along
AGREEMENT = {"fp32": 0.99999, "fp16": 0.999}
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


@dataclass(frozen=True)
class Case:
    """What is run, on what, and what goes wrong."""

    seed: int
    architecture: Architecture
    precision: Precision
    workload: str
    capacities: tuple[int, ...]
    external: bool
    failures: str | None
    """What an allocation raises that fails at random; an empty text: `OutOfMemoryError`."""
    context: bool
    """Whether the driver takes memory of its own when the first kernel runs."""
    dying: int | None
    """The device that dies, if one does; another is left."""

    def __str__(self) -> str:
        sizes = "+".join(f"{capacity / MiB:.0f}" for capacity in self.capacities)
        troubles = {
            "external": self.external,
            f"failures ({self.failures})": self.failures is not None,
            "context": self.context,
            f"device {self.dying} dies": self.dying is not None,
        }
        trouble = "".join(f", {word}" for word, on in troubles.items() if on)
        return f"seed {self.seed}: {self.architecture} {self.precision} {self.workload} on {sizes} MiB{trouble}"


def make_case(seed: int) -> Case:
    """Choose everything by the seed."""
    rng = random.Random(seed)
    architecture = ARCHITECTURES[seed % len(ARCHITECTURES)]
    precision: Precision = rng.choice(["fp32", "fp32", "fp16"])
    smallest = _smallest_bytes(architecture, precision)
    capacities = tuple(int(smallest * rng.choice([1.0, 1.05, 1.3, 2.0, 6.0])) for _ in range(rng.choice([1, 1, 2, 3])))
    return Case(
        seed=seed,
        architecture=architecture,
        precision=precision,
        workload=rng.choice(["short", "long-tailed", "worst"]),
        capacities=capacities,
        external=rng.random() < 0.4,
        failures=rng.choice(NO_ROOM) if rng.random() < 0.3 else None,
        context=rng.random() < 0.3,
        dying=rng.randrange(len(capacities)) if len(capacities) > 1 and rng.random() < 0.3 else None,
    )


def run_case(case: Case) -> Counter[str]:
    """Run a case, assert that all is well, and give the mitigations that it took."""
    texts = _texts(case.workload, case.seed)
    controls = simulate(case.capacities)
    gc.collect()  # a device that died in an earlier case works again: what it held can be freed
    controls.watch_host_memory()
    trouble = _Trouble(case, controls)
    mitigations: Counter[str] = Counter()
    finished: list[CollectionFinished] = []

    def watch(event: Event) -> None:
        if isinstance(event, Mitigated):
            assert event.details["reason"], event.kind
            mitigations[event.kind] += 1
        if isinstance(event, CollectionFinished):
            finished.append(event)
        if isinstance(event, LeaseAcquired):
            trouble.begin()
        if isinstance(event, BatchEncoded):
            trouble.after_batch(event.device)

    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "chunks" / "c").mkdir(parents=True)
        (root / "chunks" / "c" / "t_chunks.json").write_text(json.dumps(texts))
        sizes = "+".join(str(capacity) for capacity in case.capacities)
        config = make_config(
            root / "chunks",
            root / "out",
            models=str(_model(case.architecture)),
            devices=f"simulated:{sizes}",
            precision=case.precision,
            exports="npy",
        )
        run(config, watch, StopSwitch())
        assert finished[0].status == "completed", finished[0].error
        vectors = np.load(root / "out" / "c" / "embeddings.npy")
    races = controls.take_races()
    assert not races, races[0]
    _check_vectors(case, vectors, _reference(case.architecture, case.workload, case.seed))
    for device in set(range(len(case.capacities))) - {case.dying}:
        assert controls.usage(device)["allocated"] == 0, f"{controls.usage(device)['allocated']} bytes left on {device}"
    if case.failures is None:
        ceiling = MemoryLimits().ceiling_bytes(0, case.capacities[0])
        assert controls.usage(0)["high_water"] <= ceiling, f"{controls.usage(0)['high_water']} > {ceiling}"
    return mitigations


class _Trouble:
    """Other processes that come and go, allocations that fail, a device that dies."""

    def __init__(self, case: Case, controls: SimulatedControls) -> None:
        self._case = case
        self._controls = controls
        self._rng = random.Random(case.seed + 1)
        self._begun = False

    def begin(self) -> None:
        """When the first lease begins: opening devices makes them healthy."""
        if self._begun:
            return
        self._begun = True
        for device, capacity in enumerate(self._case.capacities):
            self._controls.set_context(device, capacity // 50 if self._case.context else 0)
            self._controls.set_allocation_error(device, self._case.failures or "")
        if self._case.failures is not None:
            self._controls.fail_after(0, self._rng.randrange(2000))
        if self._case.dying is not None:
            self._controls.die_after(self._case.dying, self._rng.randrange(2500), self._rng.choice(DEATHS))

    def after_batch(self, device: str) -> None:
        # only on the device that has just finished a batch: elsewhere a forward may be under way
        if not device.startswith("simulated"):
            return
        index = int(device.partition(":")[2])
        if self._case.external and self._rng.random() < 0.5:
            share = self._rng.choice([0.0, 0.0, 0.1, 0.3, 0.5])
            self._controls.set_external(index, int(self._case.capacities[index] * share))
        if self._case.failures is not None and self._rng.random() < 0.3:
            self._controls.fail_after(index, self._rng.randrange(300))


def _check_vectors(case: Case, vectors: np.ndarray, reference: np.ndarray) -> None:
    assert vectors.shape == reference.shape, f"{vectors.shape} instead of {reference.shape}"
    cosines = (vectors.astype(np.float64) * reference).sum(1)
    assert cosines.min() >= AGREEMENT[case.precision], f"worst cosine {cosines.min():.6f}"


def _model(architecture: Architecture) -> Path:
    return tiny_model(architecture, hidden=128, layers=3)


@functools.cache
def _encoder(architecture: Architecture, dtype: str) -> Encoder:
    return load_encoder(resolve_model(str(_model(architecture))), dtype, "cpu")


@functools.cache
def _smallest_bytes(architecture: Architecture, precision: str) -> int:
    """Capacity for the weights and one short batch, as the allocator reserves them, under the safety margin."""
    controls = simulate([ROOMY])
    (device,) = open_devices(f"simulated:{ROOMY}", MemoryLimits())
    encoder = _encoder(architecture, device.dtype(precision))
    controls.set_workspace(0, MiB // 2)  # about what it is on a device as small as the one asked for
    encoder.model.to(device.torch_device)
    tokenized = encoder.tokenize(["short"])
    device.reset_peak()
    encoder.forward(encoder.batch(tokenized, np.array([0])))
    peak = device.snapshot().peak_reserved_bytes
    encoder.model.to("cpu")
    device.release_workspaces()
    device.release_cache()
    return int(peak / (1 - MemoryLimits().safety_margin)) + 2 * MiB


@functools.cache
def _texts(workload: str, seed: int) -> list[str]:
    rng = random.Random(seed)
    draw: dict[str, Callable[[], int]] = {
        "short": lambda: rng.randint(5, 60),
        "long-tailed": lambda: min(600, int(rng.paretovariate(1.1) * 20)),
        "worst": lambda: 600,
    }
    count = {"short": 80, "long-tailed": 50, "worst": 16}[workload]
    texts = []
    for number in range(count):
        text, length = f"{number} ", draw[workload]()
        while len(text) < length:
            text += rng.choice(WORDS) + " "
        texts.append(text)
    return texts


@functools.cache
def _reference(architecture: Architecture, workload: str, seed: int) -> np.ndarray:
    encoder = _encoder(architecture, "float32")
    tokenized = encoder.tokenize(_texts(workload, seed))
    vectors: dict[int, np.ndarray] = {}
    for length in np.unique(tokenized.lengths):  # rows of one length need no padding
        rows = np.flatnonzero(tokenized.lengths == length)
        vectors |= zip(rows.tolist(), encoder.forward(encoder.batch(tokenized, rows)).numpy(), strict=True)
    return np.stack([vectors[row] for row in range(len(vectors))]).astype(np.float64)


@dataclass(frozen=True)
class Outcome:
    """How some cases went."""

    failures: tuple[str, ...] = ()
    mitigations: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.failures + other.failures, self.mitigations + other.mitigations)


def run_cases(seeds: Sequence[int]) -> Outcome:
    """Run cases in this process, one after the other."""
    done = Outcome()
    for seed in seeds:
        case = make_case(seed)
        try:
            done += Outcome(mitigations=run_case(case))
        except AssertionError as error:
            done += Outcome((f"{case}: {error}",))
    return done


def run_in_process(seeds: Sequence[int]) -> Outcome:
    """Run cases in a process of their own, which may die of them."""
    command = [sys.executable, "-m", "tests.simulated.torture", "--seeds", ",".join(map(str, seeds))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return Outcome((f"seeds {seeds[0]} to {seeds[-1]}: exit {done.returncode}: {done.stderr[-400:]}",))
    told = json.loads(done.stdout.splitlines()[-1])
    return Outcome(tuple(told["failures"]), Counter(told["mitigations"]))


def parse_seeds(word: str) -> list[int]:
    """`START:STOP`, or seeds with commas between them."""
    return list(range(*map(int, word.split(":")))) if ":" in word else [int(seed) for seed in word.split(",")]


def main() -> int:
    """Run many cases and say how they went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--dying", action="store_true", help="only cases in which a device dies")
    parser.add_argument("--seeds", type=parse_seeds, help="START:STOP or A,B,C: run these here, print a line of JSON")
    options = parser.parse_args()
    if options.seeds:
        done = run_cases(_chosen(options.seeds, options.dying))
        print(json.dumps({"failures": done.failures, "mitigations": done.mitigations}))
        return 0
    started, done, ended = time.monotonic(), Outcome(), 0
    seeds = _chosen(range(options.first, options.first + options.cases), options.dying)
    parts = [seeds[start : start + PER_PROCESS] for start in range(0, len(seeds), PER_PROCESS)]
    with ThreadPoolExecutor(options.jobs) as pool:
        for part, outcome in zip(parts, pool.map(run_in_process, parts), strict=True):
            done += outcome
            ended += len(part)
            print("".join(f"FAILED {failure}\n" for failure in outcome.failures), end="")
            print(f"{ended} cases in {time.monotonic() - started:.0f} s", flush=True)
    print(f"mitigations: {dict(done.mitigations.most_common())}")
    print(f"{len(seeds) - len(done.failures)} passed, {len(done.failures)} failed")
    return 1 if done.failures else 0


def _chosen(seeds: Sequence[int], dying: bool) -> list[int]:
    return [seed for seed in seeds if not dying or make_case(seed).dying is not None]


if __name__ == "__main__":
    sys.exit(main())
