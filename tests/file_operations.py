"""A run is killed, or gets an error, at each of its file operations in turn; then it is run again.

    python -m tests.file_operations --every 1

The run resumes an output whose chunks have changed, so that operations replace and delete as well as create. Operations
are those of Python below the output: opening, renaming, deleting, making and removing folders, syncing. After the fault
the same command must complete with the vectors of an undisturbed run, leave nothing over, and `verify` must agree.
A run that gets an error (disk full, read-only, input/output error) must end by itself, with a sentence and a summary.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.support.forked import fork, model_of
from ultimate_embedder.cli import main as main_of_cli
from ultimate_embedder.files import copy_folder, is_temporary
from ultimate_embedder.vectors import store

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
FAULTS = ("kill", "ENOSPC", "EIO", "EROFS")
TEXTS = 40


@dataclass(frozen=True)
class Fault:
    """What happens at which operation."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind} at operation {self.number}"


class _Operations:
    """Counts the file operations below a folder, and faults one of them."""

    def __init__(self, folder: Path, fault: Fault | None, noted: Path) -> None:
        self._folder = str(folder)
        self._fault = fault
        self._noted = noted
        self._count = 0
        self._fsync = os.fsync

    def install(self) -> None:
        sys.addaudithook(self._audit)
        os.fsync = self._sync  # type: ignore[assignment] # the one operation that has no audit event

    def write_count(self) -> None:
        self._noted.write_text(str(self._count))

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not (arguments[2] or 0) & WRITING:
            return
        if os.fspath(arguments[0]).startswith(self._folder):
            self._operate()

    def _sync(self, descriptor: Any) -> None:
        self._operate()
        self._fsync(descriptor)

    def _operate(self) -> None:
        number, self._count = self._count, self._count + 1
        if self._fault is None or number != self._fault.number:
            return
        if self._fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        code = getattr(errno, self._fault.kind)
        raise OSError(code, os.strerror(code))


class FaultyRuns:
    """An output of earlier chunks, and runs over it with the chunks of now."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._chunks = root / "chunks"
        self._before = root / "before"
        self._said = root / "said.txt"
        self._noted = root / "operations.txt"
        models = ",".join(str(model_of("bert", layers)) for layers in (3, 4))  # two share their token ids
        self._ways = ["--models", models, "--devices", "cpu", "--fusion", "named", "--mode", "sequential", "--quiet"]
        self._ways += ["--export", "npy,parquet,jsonl,qdrant"]
        self._write_chunks([f"text {number}" for number in range(TEXTS)])
        assert self._embed(self._before) == 0, self._said.read_text()
        self._write_chunks([f"text {number}" for number in range(TEXTS // 2, TEXTS + TEXTS // 2)])
        assert self._embed(root / "expected") == 0, self._said.read_text()
        self._expected = _content(root / "expected")

    def count_operations(self) -> int:
        """How many operations the run has without a fault."""
        output = self._fresh_output()
        assert self._embed(output, lambda: self._operations(output, None)) == 0, self._said.read_text()
        return int(self._noted.read_text())

    def problem_with(self, fault: Fault) -> str | None:
        """Run with a fault, then without; gives what is wrong afterwards."""
        output = self._fresh_output()
        code = self._embed(output, lambda: self._operations(output, fault))
        said = self._said.read_text(errors="replace")
        if fault.kind == "kill" and code not in (-signal.SIGKILL, 0):
            return f"ended with {code}: {said[-300:]}"
        if fault.kind != "kill" and (code not in (0, 1, 2, 3) or "Traceback" in said):
            return f"ended with {code}: {said[-600:]}"
        if (code := self._embed(output)) != 0:
            return f"the run after it ended with {code}: {self._said.read_text(errors='replace')[-300:]}"
        if problem := _difference(_content(output), self._expected):
            return problem
        if left := [str(path.relative_to(output)) for path in output.rglob("*") if is_temporary(path.name)]:
            return f"left over: {', '.join(left)}"
        if (code := self._verify(output)) != 0:
            return f"verify ended with {code}: {self._said.read_text(errors='replace')[-300:]}"
        return None

    def _fresh_output(self) -> Path:
        output = self._root / "out"
        shutil.rmtree(output, ignore_errors=True)
        copy_folder(self._before, output)  # holes in files stay holes
        return output

    def _operations(self, output: Path, fault: Fault | None) -> _Operations:
        return _Operations(output, fault, self._noted)

    def _embed(self, output: Path, watched: Callable[[], _Operations] | None = None) -> int:
        def work() -> int:
            store.SHARD_ROWS = 16
            operations = watched() if watched else None
            if operations:
                operations.install()
            code = main_of_cli(["embed", str(self._chunks), "--output", str(output), *self._ways])
            if operations:
                operations.write_count()
            return code

        return fork(work, self._said).wait()

    def _verify(self, output: Path) -> int:
        return fork(lambda: main_of_cli(["verify", str(output), "--sample", "3"]), self._said).wait()

    def _write_chunks(self, texts: list[str]) -> None:
        folder = self._chunks / "c"
        folder.mkdir(parents=True, exist_ok=True)
        records = [{"text": text, "id": text} for text in texts]
        (folder / "t_chunks.json").write_text(json.dumps(records))


def _content(output: Path) -> dict[str, Any]:
    """Ids and vectors of every export."""
    folder = output / "c"
    table = pq.read_table(folder / "chunks.parquet")
    points = [json.loads(line) for line in (folder / "points.jsonl").read_text("utf-8").splitlines()]
    return {
        "ids": table.column("chunk_id").to_pylist(),
        "ids in points.jsonl": [point["payload"]["chunk_id"] for point in points],
        **{path.name: np.load(path) for path in sorted((folder / "embeddings").glob("*.npy"))},
    }


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str | None:
    if found.keys() != expected.keys():
        return f"there are {sorted(found)}, expected were {sorted(expected)}"
    for name, value in expected.items():
        same = np.allclose(found[name], value, atol=1e-5) if isinstance(value, np.ndarray) else found[name] == value
        if not same:
            return f"{name} differ"
    return None


def main() -> int:
    """Fault operations one by one, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="fault only every Nth operation")
    parser.add_argument("--faults", default=",".join(FAULTS), help="some of kill,ENOSPC,EIO,EROFS")
    options = parser.parse_args()
    tried: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        runs = FaultyRuns(Path(temporary))
        operations = runs.count_operations()
        print(f"{operations} file operations", flush=True)
        for kind in options.faults.split(","):
            for number in range(options.every // 2, operations, options.every):
                fault = Fault(kind, number)
                tried[kind] += 1
                if problem := runs.problem_with(fault):
                    failed += 1
                    print(f"FAILED {fault}: {problem}", flush=True)
            print(f"{kind}: {tried[kind]} operations", flush=True)
    print(f"{tried.total() - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
