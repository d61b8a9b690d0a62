"""What the host does for one batch, by layout: kernels that it launches, and the time that launching takes.

    make host-calls            # prints a table and writes build/host-calls.json

Kernels are counted on a simulated card, for all-MiniLM-L6-v2 and a batch of 64 texts of 51 lengths. The time is of a model of
as many layers that computes next to nothing, on one core: the host's share of a forward. The rule for the layout of a pass
(`planning/passes.py`) and the size of batches of small models (`batching/plan.py`) follow from these figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.support.tiny_models import tiny_model

from ultimate_embedder.devices import MemoryLimits, open_devices
from ultimate_embedder.devices.simulated import simulate
from ultimate_embedder.models import Encoder, load_encoder, resolve_model

LENGTHS = np.array(sorted([*range(257, 308), *range(257, 270)], reverse=True))  # 64 rows, 51 lengths
SHORT = np.array(sorted([*range(4, 55), *range(4, 17)], reverse=True))
LAYERS = 6
MOST_KERNELS_PER_LAYER = 25
MOST_HOST_US_PER_LAYER = 800  # the rule for batches assumes half of it


def texts(encoder: Encoder, lengths: np.ndarray) -> Any:
    tokenized = encoder.tokenize(["a " * 600] * len(lengths))
    rows = [row[:length] for row, length in zip(tokenized.rows, lengths, strict=True)]
    return type(tokenized)(rows, lengths, np.zeros(len(lengths), bool))


def count_kernels(layout: str) -> int:
    """Kernels of one forward of MiniLM."""
    controls = simulate([4 << 30])
    (device,) = open_devices("simulated:4GiB", MemoryLimits())
    encoder = load_encoder(resolve_model("all-minilm-l6-v2"), "float32", "cpu", max_tokens=512)
    made = texts(encoder, LENGTHS)
    encoder.model.to(device.torch_device)
    packed = layout == "packed" and encoder.can_pack(device)
    batch = encoder.batch(made, np.arange(len(LENGTHS)), packed)
    if layout == "padded":  # to the longest, as if alignment did not matter
        features = encoder.tokenizer.pad(made.rows)
        batch = type(batch)(features, batch.tokens, features["input_ids"].numel())
    before = controls.kernel_calls()
    encoder.forward(batch)
    return controls.kernel_calls() - before


def host_microseconds(layout: str, rounds: int) -> float:
    """Time of a forward of a model with six layers that computes next to nothing, on the host."""
    import torch

    torch.set_num_threads(1)
    encoder = load_encoder(resolve_model(str(tiny_model("bert", hidden=32, layers=LAYERS))), "float32", "cpu")
    made = texts(encoder, SHORT if layout == "packed" else np.array([8, 7]))
    (device,) = open_devices("cpu", MemoryLimits())
    packed = layout == "packed" and encoder.can_pack(device)
    batch = encoder.batch(made, np.arange(len(made.lengths)), packed)
    times = []
    for _ in range(rounds + 3):
        started = time.perf_counter()
        encoder.forward(batch)
        times.append(time.perf_counter() - started)
    return statistics.median(times[3:]) * 1e6


def longest_wait_us(interval_s: float, seconds: float = 1.5) -> float:
    """How long a thread that wakes up waits for Python's lock, at the 95th percentile, beside one that never sleeps."""
    import sys

    before, waits, running = sys.getswitchinterval(), [], True

    def busy() -> None:
        while running:
            sum(range(200))

    sys.setswitchinterval(interval_s)
    worker = threading.Thread(target=busy)
    worker.start()
    try:
        ended = time.perf_counter() + seconds
        while time.perf_counter() < ended:
            asked = time.perf_counter()
            time.sleep(0.001)  # lets the lock go, as a wait for a card does
            waits.append(time.perf_counter() - asked - 0.001)
    finally:
        running = False
        worker.join()
        sys.setswitchinterval(before)
    return float(np.percentile(waits, 95)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("build/host-calls.json"))
    options = parser.parse_args()
    rows = []
    print("| layout | kernels per batch | host, us per batch |\n|---|---|---|")
    host_us = {layout: host_microseconds(layout, options.rounds) for layout in ("padded", "packed")}
    host_us["bucketed"] = host_us["padded"]  # the same calls of Python
    for layout in ("padded", "bucketed", "packed"):
        row = {"layout": layout, "kernels": count_kernels(layout), "host_us": host_us[layout]}
        rows.append(row)
        print(f"| {layout} | {row['kernels']} | {row['host_us']:.0f} |")
    print(f"| budget | {MOST_KERNELS_PER_LAYER * LAYERS} | {MOST_HOST_US_PER_LAYER * LAYERS} |")
    print("\n| switch interval, ms | a woken thread waits, us (95 %) |\n|---|---|")
    waits = {interval: longest_wait_us(interval) for interval in (0.005, 0.001, 0.0005)}
    for interval, wait in waits.items():
        print(f"| {interval * 1000:g} | {wait:.0f} |")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"layouts": rows, "waits_us": waits}, indent=1))


if __name__ == "__main__":
    main()
