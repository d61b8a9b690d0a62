"""A million chunks through a trivial encoder, killed twice during the run: does it complete, and does memory stay constant?

make million         # prints memory at each quarter, and the size of log and report, and writes build/million.json
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.scale import trivial_model, write_chunks
from ultimate_embedder.output import Output
from ultimate_embedder.report import write_report
from ultimate_embedder.vectors import read_ledger

PROGRAM = "import sys; from ultimate_embedder.cli import main; sys.exit(main(sys.argv[1:]))"


def stored(output: Path) -> int:
    """The number of valid vectors on disk."""
    return sum(read_ledger(path).rows for path in output.glob("*/store/*") if path.is_dir())


class Run:
    """One attempt at the whole run, monitored from outside."""

    def __init__(self, command: list[str], output: Path) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._output = output
        self._peak_bytes = 0

    def watch(self, quarters: list[int], kill_at: int | None, rows: list[dict[str, Any]]) -> bool:
        """Wait for the end, or kill it when this many vectors are stored; records memory at each quarter."""
        started = time.monotonic()
        while self._process.poll() is None:
            time.sleep(0.5)
            resident, done = self._resident_bytes(), stored(self._output)
            self._peak_bytes = max(self._peak_bytes, resident)
            while quarters and done >= quarters[0]:
                rows.append({"stored": quarters.pop(0), "resident_mb": resident // 10**6})
                print(f"{rows[-1]['stored']:>9} vectors: {rows[-1]['resident_mb']} MB resident", flush=True)
            if kill_at is not None and done >= kill_at:
                self._process.send_signal(signal.SIGKILL)
                self._process.wait()
                print(f"killed at {done} vectors after {time.monotonic() - started:.0f} s", flush=True)
                return False
        peak = f"{self._peak_bytes / 1e6:.0f} MB at most"
        print(f"ended with {self._process.returncode} after {time.monotonic() - started:.0f} s, {peak}", flush=True)
        return self._process.returncode == 0

    def _resident_bytes(self) -> int:
        try:
            memory = psutil.Process(self._process.pid).memory_info()
        except psutil.NoSuchProcess:
            return 0
        return int(memory.rss - memory.shared)


def measure_record(output: Path) -> dict[str, Any]:
    """The size of what tells about the run, how many batches it had, and how long the report takes."""
    started = time.perf_counter()
    report = write_report(Output(output))
    seconds = time.perf_counter() - started
    summary = Output(output).read_summary()
    assert summary is not None
    log = output / "events.jsonl"
    return {
        "seconds": round(summary.seconds, 1),
        "batches": sum(one.batches for each in summary.collections for one in each.passes),
        "log_lines": sum(1 for _ in open(log, "rb")),
        "log_bytes": log.stat().st_size,
        "summary_bytes": (output / "summary.json").stat().st_size,
        "report_bytes": report.stat().st_size,
        "report_seconds": round(seconds, 2),
    }


def main() -> None:
    """Generate, run, kill twice, run to the end, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=2, help="how often the run is killed")
    parser.add_argument(
        "--words", type=int, nargs=2, default=(10, 110), help="the fewest and the most words of a chunk"
    )
    parser.add_argument("--batch-rows", type=int, help="the most chunks of a batch")
    parser.add_argument("--output", type=Path, default=Path("build/million.json"))
    options = parser.parse_args()
    count = options.chunks
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ultimate-embedder-million-") as temporary:
        root = Path(temporary)
        trivial_model(root / "model")
        (root / "chunks" / "generated").mkdir(parents=True)
        write_chunks(root / "chunks" / "generated", count, tuple(options.words))
        command = [sys.executable, "-c", PROGRAM, "embed", str(root / "chunks"), "--output", str(root / "out")]
        command += ["--models", str(root / "model"), "--export", "npy", "--quiet"]
        command += ["--batch-rows", str(options.batch_rows)] if options.batch_rows else []
        quarters = [count // 4, count // 2, count * 3 // 4, count]
        for kill_at in [*(count * number * 3 // 10 for number in range(1, options.kills + 1)), None]:
            finished = Run(command, root / "out").watch(quarters, kill_at, rows)
        assert finished
        vectors = np.load(root / "out" / "generated" / "embeddings.npy", mmap_mode="r")
        assert vectors.shape == (count, 384)
        assert stored(root / "out") == count, "a vector was stored twice"
        record = measure_record(root / "out")
    print(json.dumps(record))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"memory": rows, "record": record}, indent=2) + "\n")


if __name__ == "__main__":
    main()
