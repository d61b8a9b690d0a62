"""Check a real card: one command, one file to send back.

    make gpu-check                       # or: python -m tests.gpu_check, with the Python that has your torch

Runs the tests that hold on every card, the validation plan of two cards where there are two, and a short benchmark, and
writes what was seen to gpu-check.json: versions, cards, what they can do, test results, speed, memory. It has no texts
of yours in it, and no names of people or machines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.support.cards import VARIABLE
from ultimate_embedder import embed
from ultimate_embedder.devices import Device, MemoryLimits, open_devices
from ultimate_embedder.errors import UltimateEmbedderError

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy", "ultimate-embedder")
TEST_FILES = ("tests/simulated/test_any_card.py", "tests/simulated/test_validation_plan.py")
WORDS = ("vector", "memory", "chunk", "batch", "model", "device", "query", "point", "window", "token")
ALLOWED_S = 1800  # for the tests; one that hangs on a card must not hang the check


def main() -> int:
    """Run everything and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="cuda", help="cuda, or simulated:2x15GiB to try the check itself")
    parser.add_argument("--texts", type=int, default=20_000, help="texts of the benchmark (%(default)s)")
    parser.add_argument("--only", default="", help="of the tests, those that match (pytest -k)")
    parser.add_argument("--output", type=Path, default=Path("gpu-check.json"))
    options = parser.parse_args()
    left_out: list[str] = []
    try:
        devices = open_devices(options.devices, MemoryLimits(), report=left_out.append)
    except UltimateEmbedderError as error:
        print("\n".join([*left_out, str(error)]), file=sys.stderr)
        return 2
    checked: dict[str, Any] = {
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "machine": machine(),
        "left_out": left_out,
        "cards": [card(device) for device in devices],
    }
    for facts in checked["cards"]:
        print("  ".join(f"{name} {value}" for name, value in facts.items()))
    checked["tests"] = run_tests(options.devices, len(devices), options.only)
    checked["benchmark"] = benchmark(options.devices, options.texts)
    options.output.write_text(json.dumps(checked, indent=1) + "\n", encoding="utf-8")
    failed = [test for test in checked["tests"] if test["outcome"] in ("failure", "error")]
    print(f"{len(checked['tests'])} tests, {len(failed)} failed; {json.dumps(checked['benchmark'])}")
    print(f"wrote {options.output}: please attach it to an issue of the project")
    return 1 if failed or not checked["tests"] else 0


def machine() -> dict[str, Any]:
    """Versions, and what the host has."""
    import psutil
    import torch

    return {
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "toolkit": torch.version.cuda,
        **{name: version(name) for name in PACKAGES},
    }


def version(package: str) -> str:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from a folder that is only on the path
        return "not installed"


def card(device: Device) -> dict[str, Any]:
    """What a card is, and what it reaches in a large matrix product and a copy."""
    import torch

    module = torch.get_device_module(device.torch_device)
    now = device.snapshot()
    return {
        "name": module.get_device_name(device.torch_device),
        "capability": list(module.get_device_capability(device.torch_device)),
        "dtype": device.dtype("auto"),
        "total_bytes": now.total_bytes,
        "context_bytes": now.context_bytes,
        "external_bytes": now.external_bytes,
        "ceiling_bytes": now.ceiling_bytes,
        "teraflops": product_rate(device) / 1e12,
        "gigabytes_per_s": copy_rate(device) / 1e9,
    }


def product_rate(device: Device, size: int = 4096) -> float:
    """Operations per second of a matrix product in the number format that is used; smaller where it is simulated."""
    import torch

    size = size if device.name.startswith("cuda") else 256
    dtype = getattr(torch, device.dtype("auto"))
    one = torch.ones(size, size, dtype=dtype, device=device.torch_device)
    return 2 * size**3 / seconds_of(device, lambda: one @ one)


def copy_rate(device: Device, size_bytes: int = 1 << 30) -> float:
    """Bytes per second, read and written, of a copy within the card."""
    import torch

    size_bytes = size_bytes if device.name.startswith("cuda") else 1 << 22
    one = torch.zeros(size_bytes, dtype=torch.uint8, device=device.torch_device)
    other = torch.empty_like(one)
    return 2 * size_bytes / seconds_of(device, lambda: other.copy_(one))


def seconds_of(device: Device, work: Any) -> float:
    """Median time of some work, by the card's own clock."""
    times = []
    with device.computing():
        for _ in range(12):
            begun = device.mark()
            work()
            times.append(device.mark().seconds_since(begun))
    return max(statistics.median(times[2:]), 1e-9)


def run_tests(devices: str, cards: int, only: str) -> list[dict[str, str]]:
    """Run the tests on these devices, in a process of their own."""
    files = TEST_FILES if cards > 1 else TEST_FILES[:1]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *files, "-q", f"--junitxml={report}", "-k", only]
        command += ["--override-ini", "addopts=--strict-markers", "-p", "no:cacheprovider"]
        try:
            subprocess.run(command, cwd=ROOT, env={**os.environ, VARIABLE: devices}, timeout=ALLOWED_S, check=False)
        except subprocess.TimeoutExpired:
            return [{"name": "all", "outcome": "error", "message": f"the tests took more than {ALLOWED_S} s"}]
        if not report.exists():
            return [{"name": "all", "outcome": "error", "message": "pytest wrote no report: did its process crash?"}]
        return [outcome(case) for case in ElementTree.parse(report).iter("testcase")]


def outcome(case: ElementTree.Element) -> dict[str, str]:
    """A test and how it went."""
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return {"name": case.get("name", ""), "outcome": kind, "message": (found.text or "")[-2000:]}
    return {"name": case.get("name", ""), "outcome": "passed"}


def benchmark(devices: str, texts: int) -> dict[str, Any]:
    """Embed generated texts with all-MiniLM-L6-v2, cut at 256 tokens as it does by itself."""
    with tempfile.TemporaryDirectory() as folder:
        chunks = Path(folder) / "chunks" / "generated"
        chunks.mkdir(parents=True)
        records = [
            f"{number} " + " ".join(WORDS[(number * 7 + k) % len(WORDS)] for k in range(120 + number % 100))
            for number in range(texts)
        ]
        (chunks / "texts_chunks.json").write_text(json.dumps(records), encoding="utf-8")
        started = time.perf_counter()
        (collection,) = embed(
            Path(folder) / "chunks", Path(folder) / "out", devices=devices, exports="npy", quiet=True
        ).collections
        seconds = time.perf_counter() - started
    if not collection.passes:
        return {"status": collection.status, "error": collection.error}
    done = collection.passes[0]
    return {
        "status": collection.status,
        "texts": texts,
        "seconds": round(seconds, 2),
        "texts_per_second": round(done.texts_per_second, 1),
        "tokens_per_second": round(done.tokens_per_second),
        "waiting_share": round(done.wait_seconds / max(done.wait_seconds + done.forward_seconds, 1e-9), 4),
        "batches": done.batches,
        "peak_reserved_bytes": done.peak_reserved_bytes,
        "prediction_error": done.prediction_error,
        "tokens_by_device": done.tokens_by_device,
        "mitigations": [each.type for each in collection.mitigations],
        "leftovers": [each for lease in collection.leases for each in lease.leftovers],
    }


if __name__ == "__main__":
    sys.exit(main())
