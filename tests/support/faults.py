"""Runs on simulated devices that break at a moment of the test's choice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder import RunSummary
from ultimate_embedder.api import run_and_report
from ultimate_embedder.devices.simulated.accelerator import FAULTS_VARIABLE
from ultimate_embedder.events import Event
from ultimate_embedder.options import make_config

LAUNCH_FAILURE = "CUDA error: unspecified launch failure"
ILLEGAL_ACCESS = "CUDA error: an illegal memory access was encountered"
ASSERTED = "CUDA error: device-side assert triggered"
TIMED_OUT = "CUDA error: the launch timed out and was terminated"
ECC = "CUDA error: uncorrectable ECC error encountered"
OFF_THE_BUS = "CUDA error: GPU 0000:00:04.0 has fallen off the bus"
UNKNOWN = "CUDA error: unknown error"
TEXTS = 300


def write_texts(root: Path, count: int = TEXTS, collection: str = "c", *, empty: int = 0) -> Path:
    """A collection of texts, and of `empty` ones that are rejected."""
    rng = random.Random(0)
    folder = root / "chunks" / collection
    folder.mkdir(parents=True, exist_ok=True)
    texts = [f"{number:04} " + "word " * rng.randint(4, 24) for number in range(count)]
    (folder / "t_chunks.json").write_text(json.dumps(texts + [" "] * empty))
    return root / "chunks"


def run_with(chunks: Path, output: Path, *watch: Callable[[Event], None], **options: Any) -> RunSummary:
    """Embed, with `watch` called on every event, where a test can break a device."""
    given = {"precision": "fp32", "fusion": "concat", "exports": "npy", "quiet": True, **options}
    return run_and_report(make_config(chunks, output, **given), quiet=True, watch=watch)


def when(kind: type[Event], act: Callable[[], None], number: int = 0) -> Callable[[Event], None]:
    """Act once, on the event of this kind and number."""
    seen = []

    def watch(event: Event) -> None:
        if isinstance(event, kind):
            seen.append(event)
            if len(seen) == number + 1:
                act()

    return watch


def start(*command: str, faults: str, **options: Any) -> subprocess.Popen[str]:
    """A Python process whose simulated devices break as `faults` says, with pipes for what it prints."""
    environment = {**os.environ, FAULTS_VARIABLE: faults}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, *command], env=environment, **pipes)


def embed_command(chunks: Path, output: Path, model: str, *more: str) -> list[str]:
    """The arguments of Python that embed on two simulated devices, in many batches."""
    options = ["--models", model, "--devices", "simulated:2x64MiB", "--precision", "fp32", "--batch-tokens", "512"]
    command = ["-m", "ultimate_embedder", "embed", str(chunks), "--output", str(output)]
    return [*command, *options, "--export", "npy", *more]


def vectors_of(output: Path, collection: str = "c") -> np.ndarray:
    return np.asarray(np.load(output / collection / "embeddings.npy"))


def stored_rows(output: Path, collection: str = "c") -> int:
    """Rows in the ledgers of all passes: more than chunks times passes if any was stored twice."""
    lines = [
        line
        for ledger in (output / collection / "store").glob("*/ledger.jsonl")
        for line in ledger.read_text().splitlines()
    ]
    return sum(json.loads(line)["rows"] for line in lines)


def events_of(output: Path) -> list[dict[str, Any]]:
    lines = (output / "events.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be being written
