"""What the benchmarks share: texts, a process that is watched, and the limit that the machine sets."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "bench"
MEDIAN_WORDS, SPREAD = 78, 0.85  # of a lognormal: many short chunks, a long tail that the token limit cuts
SAMPLE_S = 0.05


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Texts of this project's own words, with the lengths that documentation has when it is chunked by headings."""
    rng = random.Random(seed)
    words = re.findall(r"\S+", " ".join(path.read_text("utf-8") for path in sorted(ROOT.glob("docs/*.md"))))
    lengths = [min(400, max(4, round(rng.lognormvariate(0, SPREAD) * MEDIAN_WORDS))) for _ in range(count)]
    starts = [rng.randrange(len(words)) for _ in lengths]
    return [" ".join((words + words)[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def read_texts(folder: Path) -> list[str]:
    """The texts of any chunk folder."""
    from ultimate_embedder.chunks import find_collections, load_chunks

    texts: list[str] = []
    for collection in find_collections(folder, (), skip=folder / "nothing").collections:
        loaded = load_chunks(collection, BUILD / "texts.arrow", lambda event: None)
        for block in loaded.table.blocks():
            texts += block.texts
    return texts


def write_chunk_folder(texts: list[str], folder: Path) -> Path:
    """The same texts as a chunk folder."""
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    (folder / "texts" / "all_chunks.json").write_text(json.dumps(texts))
    return folder


@dataclass(frozen=True)
class Watched:
    """A process that has ended: its last line of output, and what it took."""

    answer: dict[str, Any]
    seconds: float
    cpu_seconds: float
    peak_mb: float


def watch(command: list[str], **variables: str) -> Watched:
    """Run a command and watch it and its children; its last line of output is JSON."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **variables}
    # images of containers set it, and then each process would compile all modules again: seconds
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = os.times()
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    peak = _Peak(process.pid)
    out, err = process.communicate()
    seconds = time.perf_counter() - started
    peak.stop()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{err[-2000:]}")
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Watched(json.loads(out.strip().splitlines()[-1]), seconds, spent, peak.mb)


class _Peak:
    """Memory of a process and its children, sampled; pages they share are counted once (PSS)."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            try:
                root = psutil.Process(self._pid)
                processes = [root, *root.children(recursive=True)]
                used = (
                    sum(each.memory_full_info().pss for each in processes)
                    if len(processes) > 1
                    else root.memory_info().rss
                )
            except psutil.Error:
                continue
            self.mb = max(self.mb, used / 1e6)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def sgemm_gflops(workers: int, seconds: float = 0.5) -> dict[str, float]:
    """What all cores reach together on the matrix products of MiniLM, each by itself, by the kind of product."""
    from ultimate_embedder.models.fused.native import native
    from ultimate_embedder.models.fused.products import PRODUCTS
    from ultimate_embedder.models.fused.settings import NATIVE

    kinds = {name: kind for name, kind in PRODUCTS.items() if name != NATIVE or native() is not None}
    return {name: _product_gflops(kind, workers, seconds) for name, kind in kinds.items()}


def _product_gflops(kind: type[Any], workers: int, seconds: float) -> float:
    import torch

    rates: list[float] = []
    sizes = ((384, 384), (1536, 384), (384, 1536))
    products = [(size[1], kind(torch.randn(size), torch.zeros(size[0]))) for size in sizes]

    def work() -> None:
        torch.set_num_threads(1)
        inputs = {width: torch.randn(1024, width) for width in (384, 1536)}
        flops = 2 * 1024 * (384 * 384 + 2 * 384 * 1536)
        done, started = 0, time.perf_counter()
        with torch.inference_mode():
            while time.perf_counter() - started < seconds:
                for width, product in products:
                    product(inputs[width])
                done += 1
        rates.append(done * flops / (time.perf_counter() - started) / 1e9)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def machine() -> dict[str, Any]:
    """What it was measured on."""
    import platform

    name = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    return {"processor": name, "cores": os.cpu_count(), "python": platform.python_version()}
