"""The runs whose event streams `tests.compare_events` records, through public entry points only.

Each step is a process of its own that works in the run's folder, so that any version of the source tree can be
recorded: the one that PYTHONPATH names, else the installed one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.tiny_models import tiny_model

ROOMY, SMALL, TOO_SMALL = "simulated:2x1GiB", "simulated:12MiB", "simulated:5MiB"
# V4 writes events.jsonl once per call, so the first one is kept aside before the second call
V4 = """
import sys
from pathlib import Path
from processor.ultimate_embedder import EnsembleConfig, KaggleExportConfig, UltimateKaggleEmbedderV4

embedder = UltimateKaggleEmbedderV4(
    model_name=sys.argv[1],
    export_config=KaggleExportConfig(working_dir="."),
    enable_ensemble=True,
    ensemble_config=EnsembleConfig(ensemble_models=sys.argv[1:]),
)
embedder.load_chunks_from_processing("chunks")
embedder.generate_embeddings_kaggle_optimized()
(log,) = Path().rglob("events.jsonl")
log.rename(log.with_name("generate-events.jsonl"))
embedder.export_for_local_qdrant()
"""
WHERE = "import ultimate_embedder; print(ultimate_embedder.__file__)"


@dataclass(frozen=True)
class Step:
    """One process: its arguments for Python, the chunk files written before it, and variables."""

    arguments: tuple[str, ...]
    chunk_files: dict[str, list[object]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EventRun:
    """Steps that share a folder. `concurrent`: several passes at a time, whose order among each other varies."""

    name: str
    steps: tuple[Step, ...]
    concurrent: bool = False


@dataclass(frozen=True)
class StepDone:
    """The exit code of a step and the events it left, per log file."""

    exit_code: int
    said: str
    logs: dict[str, list[dict[str, object]]]


def texts(count: int, prefix: str = "text") -> list[object]:
    """Texts of various lengths, the same ones every time."""
    return [f"{prefix} number {number} " * (number * 7 % 11 + 1) for number in range(count)]


def tree_of_product() -> Path:
    """The root of the source tree that the steps will import."""
    found = subprocess.run([sys.executable, "-c", WHERE], cwd="/", capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).resolve().parents[2]


def all_runs(tree: Path) -> list[EventRun]:
    """Every run that is recorded."""
    first, second = (str(tiny_model(each, hidden=32, layers=1)) for each in ("bert", "xlm-roberta"))
    large = str(tiny_model("bert", hidden=128, layers=6))
    both = f"{first}=0.7,{second}=0.3"
    docs: dict[str, list[object]] = {"docs/a_chunks.json": texts(300)}
    faulty: list[object] = [*texts(5), "", {"id": "x", "text": "one"}, {"id": "x", "text": "two"}, 7]
    small_turns: dict[str, list[object]] = {"docs/a_chunks.json": [f"text {number}" for number in range(4200)]}
    script = str(tree / "scripts" / "embed_collections_v5.py")
    v5 = (script, "--chunks-root", "chunks", "--output-root", "out", "--model", first, "--enable-ensemble")
    v5_variables = {"ULTIMATE_EMBEDDER_DEVICES": ROOMY}
    return [
        EventRun("single model on the CPU", (_embed(first, "cpu", files=docs | {"faulty/b_chunks.json": faulty}),)),
        EventRun("nothing to do", (_embed(first, "cpu", files=docs), _embed(first, "cpu"))),
        EventRun(
            "resume with more chunk files",
            (
                _embed(first, "cpu", files=docs),
                _embed(first, "cpu", files={"docs/b_chunks.json": texts(200, "later text")}),
            ),
        ),
        EventRun(
            "resume after a deadline", (_embed(first, "cpu", "--deadline", "0s", files=docs), _embed(first, "cpu"))
        ),
        EventRun(
            "resume with another model", (_embed(first, "cpu", files=docs), _embed(both, "cpu", "--mode", "exclusive"))
        ),
        EventRun(
            "simultaneous",
            (_embed(both, ROOMY, "--mode", "simultaneous", files=docs),),
            concurrent=True,
        ),
        EventRun("sequential", (_embed(both, ROOMY, "--mode", "sequential", "--fusion", "concat", files=small_turns),)),
        EventRun(
            "exclusive",
            (_embed(both, ROOMY, "--mode", "exclusive", "--fusion", "weighted_average", files=docs),),
        ),
        EventRun(
            "exclusive, models kept on the devices",
            (
                _embed(
                    both,
                    ROOMY,
                    *("--mode", "exclusive", "--warm-cache"),
                    files=docs | {"more/a_chunks.json": texts(50, "more")},
                ),
            ),
        ),
        EventRun("a small device", (_embed(large, SMALL, "--precision", "fp32", files=docs),)),
        EventRun("a device too small for the model", (_embed(large, TOO_SMALL, "--precision", "fp32", files=docs),)),
        EventRun("a model that is missing", (_embed("nowhere/at-all", "cpu", "--offline", files=docs),)),
        EventRun("V4", (Step(("-c", V4, first, second), docs, {"ULTIMATE_EMBEDDER_DEVICES": "cpu"}),), concurrent=True),
        EventRun(
            "V5",
            (Step((*v5, "--exclusive-ensemble", "--ensemble-models", f"{first},{second}"), docs, v5_variables),),
        ),
    ]


def carry_out(run: EventRun, folder: Path) -> Iterator[StepDone]:
    """Carry out the steps of a run one after the other."""
    for step in run.steps:
        for name, records in step.chunk_files.items():
            path = folder / "chunks" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(records))
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **step.variables}
        done = subprocess.run(
            [sys.executable, *step.arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        yield StepDone(done.returncode, done.stdout, _take_logs(folder))


def _embed(models: str, devices: str, *options: str, files: dict[str, list[object]] | None = None) -> Step:
    words = ("-m", "ultimate_embedder", "embed", "chunks", "--output", "out", "--models", models)
    return Step((*words, "--devices", devices, "--quiet", *options), files or {})


def _take_logs(folder: Path) -> dict[str, list[dict[str, object]]]:
    """The events that a step left; removed, so that those of the next step are its own."""
    logs = {}
    for path in sorted(folder.rglob("*events.jsonl")):
        logs[path.name] = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
    return logs
