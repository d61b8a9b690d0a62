"""A computer that gets models from a hub, and what its command line says."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.clock import HANG_S
from tests.support.hub_here import PATIENT

KEY, HUB_ID = "bge-m3", "BAAI/bge-m3"
OTHER_KEY, OTHER_HUB_ID = "qwen3-embedding-0.6b", "Qwen/Qwen3-Embedding-0.6B"
WEIGHTS = "model.safetensors"
GET_WEIGHTS = rf"GET .*/resolve/.*/{WEIGHTS}$"
RETRY_LINE = re.compile(r"attempt \d+: retrying in (?P<wait_s>[\d.]+) s\b")
TEXTS = [f"text number {number}, " * (number % 7 + 1) for number in range(12)]
IMPATIENT_S = 3.0  # on a loaded machine the first attempt alone may take one
IMPATIENT = PATIENT | {"ULTIMATE_EMBEDDER_RETRY_TOTAL_S": str(IMPATIENT_S)}
SHORT_TIMEOUTS = {"HF_HUB_DOWNLOAD_TIMEOUT": "2", "HF_HUB_ETAG_TIMEOUT": "2"}


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def models(self) -> list[dict[str, Any]]:
        """The models in the summary of an `embed`."""
        assert self.code == 0, self.err
        models: list[dict[str, Any]] = json.loads(self.out)["collections"][0]["models"]
        return models

    @property
    def retries(self) -> list[str]:
        """The log lines about tries that failed."""
        return [line for line in self.err.splitlines() if RETRY_LINE.search(line)]

    @property
    def waits_s(self) -> list[float]:
        """How long the command waited after each of them."""
        return [float(found["wait_s"]) for found in RETRY_LINE.finditer(self.err)]


@dataclasses.dataclass(frozen=True)
class Machine:
    """A computer with a cache of its own, chunks to embed, and a hub."""

    folder: Path
    hub: str

    @property
    def cache(self) -> Path:
        return self.folder / "home" / "hub"

    @property
    def chunks(self) -> Path:
        path = self.folder / "chunks" / "docs" / "a_chunks.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(TEXTS))
        return self.folder / "chunks"

    def start(
        self, *arguments: object, program: tuple[str, ...] = ("-m", "ultimate_embedder"), **variables: str
    ) -> Any:
        """Start the command line in a process of its own."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_ENDPOINT": self.hub, "HF_HOME": str(self.folder / "home"), **PATIENT, **variables}
        command = [sys.executable, *program, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: object, **options: Any) -> Result:
        """Run the command line to its end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=HANG_S)
        return Result(process.returncode, out, err)

    def pull(self, *options: object, **variables: str) -> Result:
        return self.run("models", "pull", KEY, *options, **variables)

    def embed(self, *options: object, models: str = KEY, **variables: str) -> Result:
        return self.run(*self.embedding(*options, models=models), **variables)

    def embedding(self, *options: object, models: str = KEY) -> list[str]:
        """The arguments that embed the chunks."""
        words = ["embed", self.chunks, "--output", self.folder / "out", "--models", models, *options]
        return [*map(str, words), "--export", "npy", "--json", "--quiet"]

    def snapshot(self, commit: str, hub_id: str = HUB_ID) -> Path:
        return self.cache / f"models--{hub_id.replace('/', '--')}" / "snapshots" / commit

    def vectors(self) -> np.ndarray:
        found: np.ndarray = np.load(self.folder / "out" / "docs" / "embeddings.npy")
        return found

    def with_cache_of(self, other: Machine) -> Machine:
        """This machine, after the cache of another one was copied to it."""
        shutil.copytree(other.cache, self.cache, symlinks=True)
        return self


RunHere = Callable[[Sequence[str]], Result]


@dataclasses.dataclass(frozen=True)
class ColdRun:
    """The first run on a machine: everything had to come from the hub."""

    machine: Machine
    commit: str
    result: Result
    paths: list[str]


def assert_gave_up_in_time(done: Result) -> None:
    """The command tried again, and its waits kept within the time that `IMPATIENT` allows."""
    rounding_s = 0.05 * len(done.waits_s)
    assert done.waits_s, done.err
    assert sum(done.waits_s) <= IMPATIENT_S + rounding_s


def assert_same_vectors(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def assert_holds(snapshot: Path, model: Path) -> None:
    """Every file that loading the model needs is in the snapshot, byte for byte."""
    needed = [path for path in model.rglob("*") if path.is_file() and path.suffix != ".md"]
    wrong = [path for path in needed if path.read_bytes() != (snapshot / path.relative_to(model)).read_bytes()]
    assert not wrong


def moved(model: Path, folder: Path) -> Path:
    """A later version of a model, with other vectors."""
    shutil.copytree(model, folder)
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace('"cls"', '"mean"'))
    assert pooling.read_bytes() != (model / "1_Pooling" / "config.json").read_bytes()
    return folder
