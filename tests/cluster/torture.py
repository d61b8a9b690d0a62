"""Runs with random kills of processes, nodes and drivers: nothing may be lost or doubled.

    python -m tests.cluster.torture --runs 100 [--seed N]

Each run embeds the same texts with a tiny model; a driver in a process of its own is killed in some of them, and
started again. Every run ends with a check of the store: each text once, with the vector of a run on one machine.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.cluster.local_cluster import LocalCluster, local_cluster
from tests.cluster.runs import stored_rows, worst_cosine, write_texts

TEXTS = 900
LONGEST_S = 240.0
DRIVER = """
import sys
from tests.cluster.runs import Recorded, config_for, embed_on
from ultimate_embedder.events import CollectionFinished
chunks, output, address, model, shared = sys.argv[1:]
recorded = Recorded()
options = {"models": model, "shared_output": shared == "shared", "unit_timeout": 20.0, "ray_wait": 120.0}
embed_on(config_for(chunks, output, address, **options), recorded)
statuses = [(event.status, event.error) for event in recorded.of(CollectionFinished)]
print(statuses, len(recorded.nodes), flush=True)
sys.exit(0 if statuses == [("completed", None)] else 4)
"""


class Torture:
    """Random faults on one cluster, run after run."""

    def __init__(self, cluster: LocalCluster, root: Path, model: Path, reference: Path, chunks: Path) -> None:
        self.cluster = cluster
        self.root = root
        self.model = model
        self.reference = reference
        self.chunks = chunks
        self.faults: Counter[str] = Counter()

    def one(self, seed: int) -> str | None:
        """A run with some faults; gives what is wrong afterwards."""
        dice = random.Random(seed)
        output = self.root / f"out-{seed}"
        shared = "shared" if dice.random() < 0.3 else ""
        words = [str(self.chunks), str(output), self.cluster.address, str(self.model), shared]
        began = time.monotonic()
        while True:
            driver = subprocess.Popen([sys.executable, "-c", DRIVER, *words], stdout=subprocess.PIPE, text=True)
            code = self._shake(driver, dice, began)
            if code is not None:
                break
        if code != 0:
            said = driver.stdout.read() if driver.stdout else ""
            return f"the driver ended with {code}: {said.strip()}"
        rows, doubled, _ = stored_rows(output)
        if (rows, doubled) != (TEXTS, 0):
            return f"{rows} rows of {TEXTS}, {doubled} doubled"
        cosine = worst_cosine(output, self.reference)
        return None if cosine > 1 - 1e-5 else f"a vector has a cosine of {cosine}"

    def _shake(self, driver: subprocess.Popen[str], dice: random.Random, began: float) -> int | None:
        """Faults while a driver works; gives its exit code, or None if it was killed and must be started again."""
        left = dice.randint(0, 3)
        following = time.monotonic() + dice.uniform(4, 14)
        while driver.poll() is None:
            time.sleep(0.1)
            now = time.monotonic()
            if now - began > LONGEST_S:
                driver.kill()
                driver.wait()
                return -1
            if not left or now < following:
                continue
            left -= 1
            following = now + dice.uniform(1, 6)
            fault = dice.choices(["process", "node", "join", "driver", "freeze"], [40, 15, 15, 15, 15])[0]
            if fault == "driver":
                self.faults["driver"] += 1
                driver.kill()
                driver.wait()
                return None
            self._fault(fault, dice)
        return driver.returncode

    def _fault(self, fault: str, dice: random.Random) -> None:
        node: Any = dice.choice(self.cluster.nodes)
        if fault == "process":
            self.faults["process"] += self.cluster.signal_worker(node.node_id, signal.SIGKILL)
        elif fault == "freeze":
            self.faults["freeze"] += self.cluster.signal_worker(node.node_id, signal.SIGSTOP)
        elif fault == "node":
            self.faults["node"] += 1
            self.cluster.remove(node)
            self.cluster.add()
        elif len(self.cluster.nodes) < 3:
            self.faults["join"] += 1
            self.cluster.add()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from tests.support.tiny_models import tiny_model
    from ultimate_embedder import embed

    model = tiny_model("bert")
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, local_cluster(2) as cluster:
        root = Path(folder)
        chunks = write_texts(root, TEXTS)
        embed(chunks, root / "reference", models=str(model), devices="cpu", exports="none", offline=True, quiet=True)
        torture = Torture(cluster, root, model, root / "reference", chunks)
        started = time.monotonic()
        for seed in range(options.seed, options.seed + options.runs):
            problem = torture.one(seed)
            if problem is not None:
                failures.append(f"run {seed}: {problem}")
            print(f"run {seed}: {problem or 'passed'}; {dict(torture.faults)}", flush=True)
    taken = time.monotonic() - started
    print(f"{options.runs} runs in {taken:.0f} s, {len(failures)} failed, faults {dict(torture.faults)}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
