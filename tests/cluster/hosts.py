"""A Ray cluster of three hosts, each in a network namespace of its own, and the faults that only a network has.

    python -m tests.cluster.hosts [--texts FILE.jsonl] [--limit N] [--only NAME ...]

The command runs on the first host, as a user would type it; two hosts with one core each are the nodes. After each
case the store is compared with a run on one machine: each text once, with the same vector.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.local_cluster import REPOSITORY
from tests.cluster.network import Network, NoNamespacesError, network_of
from tests.cluster.runs import largest_difference, stored_rows, write_texts
from ultimate_embedder import embed

PORT = 6379
STORE_BYTES = 80 << 20
CLOSE = 1e-5
LONGEST_S = 600.0
START_S = 120.0
SLOW = "4mbit"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'src'}",
    "RAY_AUTH_MODE": "disabled",  # nothing but these hosts is in their network
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Cluster:
    """Ray on the hosts of a network: a head without resources, and nodes of one core."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._starts = 0
        self.head = network.hosts["head"]

    @property
    def address(self) -> str:
        return f"{self.head.address}:{PORT}"

    def start(self) -> None:
        """The head and both nodes."""
        self._start("head", "--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")
        for name in ("a", "b"):
            self.start_node(name)

    def start_node(self, name: str) -> None:
        """Ray on a host; what is left of it there is ended first."""
        self.network.hosts[name].end_all()
        self._start(name, f"--address={self.address}", "--num-cpus=1")

    def _start(self, name: str, *words: str) -> None:
        host, self._starts = self.network.hosts[name], self._starts + 1
        common = [
            f"--node-ip-address={host.address}",
            f"--temp-dir={self._folder / str(self._starts)}",  # short: a socket's path may have 107 characters
            f"--object-store-memory={STORE_BYTES}",
            "--disable-usage-stats",
        ]
        start = "from ray.scripts.scripts import main; main()"
        log = (self._folder / f"{name}-{self._starts}.log").open("w", encoding="utf-8")
        with log:
            ray = host.start(
                [sys.executable, "-c", start, "start", *words, *common],
                ENVIRONMENT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            code = ray.wait(START_S)
        if code:
            raise RuntimeError(f"'ray start' on {name} ended with {code}: {Path(log.name).read_text(encoding='utf-8')}")


@dataclass
class Run:
    """The command on the first host, while it runs."""

    cluster: Cluster
    process: subprocess.Popen[str]
    output: Path
    began: float = field(default_factory=time.monotonic)

    def say(self, words: str) -> None:
        print(f"    {time.monotonic() - self.began:5.1f} s: {words}", flush=True)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the log has of a kind so far."""
        path = self.output / "events.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.startswith(f'{{"event": "{kind}"') and line.endswith("}")]

    def wait_for(self, condition: Callable[[], bool], longest_s: float = LONGEST_S) -> bool:
        """Whether it came true before the command ended."""
        until = time.monotonic() + longest_s
        while self.process.poll() is None and time.monotonic() < until:
            if condition():
                return True
            time.sleep(0.2)
        return False

    def wait_for_both(self) -> None:
        """Until each node has done a unit."""
        self.wait_for(lambda: len({event["device"] for event in self.events("BatchEncoded")}) >= 2)

    def losses(self) -> list[str]:
        return [str(event["details"]) for event in self.events("Mitigated") if event["kind"] == "node_lost"]


def _plain(run: Run) -> None:
    pass


def _cut_for(name: str, seconds: float) -> Callable[[Run], None]:
    """The link of a host fails, and comes back while Ray still believes in the host."""

    def fault(run: Run) -> None:
        run.wait_for_both()
        run.cluster.network.cut(name)
        run.say(f"{name} is cut off")
        run.wait_for(lambda: False, seconds)
        run.cluster.network.mend(name)
        run.say(f"{name} is back")

    return fault


def _cut_until_dead(run: Run) -> None:
    """A node is cut off for so long that it is lost; back again, it is started anew, and joins."""
    run.wait_for_both()
    run.cluster.network.cut("b")
    run.say("b is cut off")
    run.wait_for(lambda: bool(run.losses()), 200.0)
    run.say(f"b is lost: {run.losses()}")
    run.cluster.network.mend("b")
    run.say("b is back")
    ended = run.wait_for(lambda: not run.cluster.network.hosts["b"].is_running("raylet"), 60.0)
    run.say(f"Ray on b {'has ended itself' if ended else 'still runs'}")
    run.cluster.start_node("b")
    run.say("Ray is started on b again")
    run.wait_for(lambda: len(run.events("NodeJoined")) > 2)
    run.say(f"{len(run.events('NodeJoined'))} nodes have joined")


def _slow(run: Run) -> None:
    """The links of both nodes are slow from the beginning: what does not fit into their queues is dropped."""
    for name in ("a", "b"):
        run.cluster.network.throttle(name, SLOW)
    run.say(f"the links of both nodes have {SLOW}")


CASES: dict[str, Callable[[Run], None]] = {
    "plain": _plain,
    "node-20s": _cut_for("b", 20.0),
    "node-dead": _cut_until_dead,
    "driver-20s": _cut_for("head", 20.0),
    "slow": _slow,
}


def run_case(cluster: Cluster, fault: Callable[[Run], None], chunks: Path, output: Path, options: list[str]) -> Run:
    """The command, with something that happens to the network."""
    words = [sys.executable, "-m", "ultimate_embedder", "embed", str(chunks), "-o", str(output)]
    words += ["--engine", "ray", "--ray-address", cluster.address, "--devices", "cpu", "--export", "none", *options]
    with (output.parent / f"{output.name}.log").open("w", encoding="utf-8") as log:
        process = cluster.head.start(words, ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT)
        run = Run(cluster, process, output)
        fault(run)
        process.wait(LONGEST_S)
    run.say(f"ended with {process.returncode}")
    return run


def find_problem(run: Run, reference: Path, texts: int) -> str | None:
    """What is wrong after a run."""
    if run.process.returncode:
        said = (run.output.parent / f"{run.output.name}.log").read_text(encoding="utf-8")
        return f"the command ended with {run.process.returncode}: {said[-2000:]}"
    rows, doubled, _ = stored_rows(run.output)
    difference = largest_difference(run.output, reference)
    run.say(f"{rows} of {texts} texts, {doubled} doubled, largest difference {difference:.1e}")
    if (rows, doubled) != (texts, 0):
        return f"{rows} rows of {texts}, {doubled} doubled"
    return None if difference < CLOSE else f"vectors differ by {difference}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=Path, help="JSON Lines with a field 'text'; otherwise texts are made up")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--model", default="all-minilm-l6-v2")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    try:
        with tempfile.TemporaryDirectory(prefix="h-") as folder:
            failures = _run_all(Path(folder), options)
    except NoNamespacesError as error:
        print(f"skipped: network namespaces cannot be made here ({error})")
        return
    print(f"{len(options.only)} cases, {len(failures)} failed")
    sys.exit(bool(failures))


def _end(number: int, frame: object) -> None:
    """Remove namespaces and their processes, undisturbed: `timeout` sends its signal twice."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(1)


def _run_all(root: Path, options: argparse.Namespace) -> list[str]:
    with network_of("head"):  # skipped before anything is computed
        chunks, reference = _chunks(root, options), root / "reference"
    embed(chunks, reference, models=options.model, devices="cpu", exports="none", offline=True, quiet=True)
    texts = stored_rows(reference)[0]
    failures = []
    for name in options.only:
        print(f"{name}:", flush=True)
        # a network and a cluster of its own: nothing of the case before is left
        with network_of("head", "a", "b") as network:
            cluster = Cluster(network, root / f"r{options.only.index(name)}")
            cluster.start()
            run = run_case(cluster, CASES[name], chunks, root / name, ["--models", options.model, "--offline"])
        for event in run.events("Warned"):
            run.say(f"told: {event['message']}")
        problem = find_problem(run, reference, texts)
        failures += [f"{name}: {problem}"] if problem else []
        print(f"{name}: {problem or 'passed'}", flush=True)
    return failures


def _chunks(root: Path, options: argparse.Namespace) -> Path:
    if options.texts is None:
        return write_texts(root, options.limit)
    lines = options.texts.read_text(encoding="utf-8").splitlines()[: options.limit]
    texts = [json.loads(line)["text"] for line in lines]
    return write_texts(root, 0, *(text for text in texts if text.strip()))


if __name__ == "__main__":
    main()
