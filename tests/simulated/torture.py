"""Torture: seeded runs on simulated devices that are too small, shared, or failing. Every one must complete.

    python -m tests.simulated.torture --cases 300

A case is a model, one to three devices, a workload and what goes wrong. Afterwards: every vector is there and is
the right one, the first device never held more than its ceiling, nothing is left on any device, and no wait is missing.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support.tiny_models import ARCHITECTURES, Architecture, tiny_model
from ultimate_embedder.config import Precision
from ultimate_embedder.devices import MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import SimulatedControls, simulate
from ultimate_embedder.events import BatchEncoded, CollectionFinished, Event, Mitigated
from ultimate_embedder.models import Encoder, load_encoder, resolve_model
from ultimate_embedder.options import make_config
from ultimate_embedder.pipeline import run
from ultimate_embedder.stop import StopSwitch

MiB = 1 << 20
ROOMY = 4096 * MiB
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
    failures: bool

    def __str__(self) -> str:
        sizes = "+".join(f"{capacity / MiB:.0f}" for capacity in self.capacities)
        trouble = "".join(word for word, on in ((" external", self.external), (" failures", self.failures)) if on)
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
        failures=rng.random() < 0.3,
    )


def run_case(case: Case) -> Counter[str]:
    """Run a case, assert that all is well, and give the mitigations that it took."""
    texts = _texts(case.workload, case.seed)
    controls = simulate(case.capacities)
    controls.watch_host_memory()
    trouble = _Trouble(case, controls)
    mitigations: Counter[str] = Counter()
    finished: list[CollectionFinished] = []

    def watch(event: Event) -> None:
        if isinstance(event, Mitigated):
            mitigations[event.kind] += 1
        if isinstance(event, CollectionFinished):
            finished.append(event)
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
        trouble.begin()
        run(config, watch, StopSwitch())
        assert finished[0].status == "completed", finished[0].error
        vectors = np.load(root / "out" / "c" / "embeddings.npy")
    races = controls.take_races()
    assert not races, races[0]
    _check_vectors(case, vectors, _reference(case.architecture, case.workload, case.seed))
    for device in range(len(case.capacities)):
        assert controls.usage(device)["allocated"] == 0, f"{controls.usage(device)['allocated']} bytes left on {device}"
    if not case.failures:
        ceiling = MemoryLimits().ceiling_bytes(0, case.capacities[0])
        assert controls.usage(0)["high_water"] <= ceiling, f"{controls.usage(0)['high_water']} > {ceiling}"
    return mitigations


class _Trouble:
    """Other processes that come and go, and allocations that fail."""

    def __init__(self, case: Case, controls: SimulatedControls) -> None:
        self._case = case
        self._controls = controls
        self._rng = random.Random(case.seed + 1)

    def begin(self) -> None:
        if self._case.failures:
            self._controls.fail_after(0, self._rng.randrange(2000))

    def after_batch(self, device: str) -> None:
        # only on the device that has just finished a batch: elsewhere a forward may be under way
        if not device.startswith("simulated"):
            return
        index = int(device.partition(":")[2])
        if self._case.external and self._rng.random() < 0.5:
            share = self._rng.choice([0.0, 0.0, 0.1, 0.3, 0.5])
            self._controls.set_external(index, int(self._case.capacities[index] * share))
        if self._case.failures and self._rng.random() < 0.3:
            self._controls.fail_after(index, self._rng.randrange(300))


def _check_vectors(case: Case, vectors: np.ndarray, reference: np.ndarray) -> None:
    assert vectors.shape == reference.shape, f"{vectors.shape} instead of {reference.shape}"
    cosines = (vectors.astype(np.float64) * reference).sum(1)
    assert cosines.min() >= AGREEMENT[case.precision], f"worst cosine {cosines.min():.6f}"


def _model(architecture: Architecture) -> Path:
    return tiny_model(architecture, hidden=128, layers=6)


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
    count = {"short": 150, "long-tailed": 100, "worst": 40}[workload]
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
    rows = [encoder.forward(encoder.batch(tokenized, np.array([row]))).numpy() for row in range(len(tokenized.rows))]
    return np.concatenate(rows).astype(np.float64)


def main() -> int:
    """Run many cases and say how they went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first case")
    options = parser.parse_args()
    started = time.monotonic()
    failed, mitigations = 0, Counter[str]()
    for seed in range(options.first, options.first + options.cases):
        case = make_case(seed)
        try:
            mitigations += run_case(case)
        except AssertionError as error:
            failed += 1
            print(f"FAILED {case}: {error}", flush=True)
        if (seed + 1) % 25 == 0:
            print(f"{seed + 1 - options.first} cases in {time.monotonic() - started:.0f} s", flush=True)
    print(f"mitigations: {dict(mitigations.most_common())}")
    print(f"{options.cases - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
