"""Remove every wait of the product, one by one, and see which test fails.

    python -m tests.simulated.mutations

A wait that can be removed while all tests pass is one that somebody will remove. Waits are found in the source: calls
of `wait_stream`, `wait_event`, `record_stream`, `record` and `synchronize`. Each is removed once; where a copy comes
before it in the same block, the copy is also moved behind it, as a wait that comes too early is none. The tests run on
a temporary copy of the source.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PRODUCT = Path("src/ultimate_embedder")
SIMULATOR = PRODUCT / "devices/simulated"  # implements these calls and makes none
ORDERS = ("wait_stream", "wait_event", "record", "synchronize")  # what comes before them and what after matters
WAITS = (*ORDERS, "record_stream")
COPY = "non_blocking=True"
# the quick ones first: a mutation is done with the first test that fails
TESTS = ("test_transfers", "test_mitigations", "test_worker", "test_modes")
MOST_SECONDS = 600  # for one file of tests: a wait for something that never comes is a failure too
# a mutation that no test can catch, and why that is right
EXEMPT: dict[str, str] = {}


@dataclass(frozen=True)
class Mutation:
    """A change of one file that takes a wait away."""

    path: Path
    name: str
    source: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(PRODUCT)}: {self.name}"


def find_mutations(path: Path, source: str) -> Iterator[Mutation]:
    """Every way to take a wait away from a file."""
    for function, block, index in _statements(ast.parse(source)):
        for call in _waits(block[index]):
            text = re.sub(r"\s+", " ", ast.unparse(call))
            yield Mutation(path, f"{function} without {text}", _without(source, call))
            copies = [each for each in block[:index] if COPY in ast.unparse(each)]
            if copies and _attribute(call) in ORDERS:
                yield Mutation(path, f"{function}, copy after {text}", _moved(source, copies[-1], block[index]))


def _statements(tree: ast.AST, function: str = "") -> Iterator[tuple[str, list[ast.stmt], int]]:
    """Each statement with the function that it is in, as a place in its block."""
    for field in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(tree, field, None)
        if not isinstance(block, list):  # the body of a lambda is an expression
            continue
        for index, statement in enumerate(block):
            named = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            inner = f"{function}.{statement.name}".lstrip(".") if named else function
            if isinstance(statement, ast.stmt):
                yield inner, block, index
            yield from _statements(statement, inner)


def _waits(statement: ast.stmt) -> list[ast.Call]:
    """The waits of a statement, but not those of statements inside it."""
    found: list[ast.Call] = []
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
        # a wait has one argument at most, and no keyword; other things that are recorded have more
        is_wait = isinstance(node, ast.Call) and _attribute(node) in WAITS
        if isinstance(node, ast.Call) and is_wait and not node.keywords and len(node.args) <= 1:
            found.append(node)
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _attribute(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _without(source: str, call: ast.Call) -> str:
    lines = source.splitlines(keepends=True)
    first, last = call.lineno - 1, (call.end_lineno or call.lineno) - 1
    head = lines[first].encode()[: call.col_offset].decode()  # offsets are in bytes
    tail = lines[last].encode()[call.end_col_offset :].decode()
    return "".join([*lines[:first], f"{head}None{tail}", *lines[last + 1 :]])


def _moved(source: str, statement: ast.stmt, behind: ast.stmt) -> str:
    lines = source.splitlines(keepends=True)
    first, last, place = statement.lineno - 1, statement.end_lineno or 0, behind.end_lineno or 0
    return "".join([*lines[:first], *lines[last:place], *lines[first:last], *lines[place:]])


def all_mutations(project: Path) -> list[Mutation]:
    """Those of the whole product."""
    found: list[Mutation] = []
    for path in sorted((project / PRODUCT).rglob("*.py")):
        relative = path.relative_to(project)
        if SIMULATOR not in relative.parents:
            found += find_mutations(relative, path.read_text("utf-8"))
    return found


def failing_test(project: Path) -> str | None:
    """The first test that fails there, if any."""
    variables = os.environ | {
        "PYTHONPATH": f"{project / 'src'}{os.pathsep}{project}",
        "PYTHONDONTWRITEBYTECODE": "1",  # a mutation may keep the size and, within a second, the time of a file
        "OMP_NUM_THREADS": "1",
    }
    for name in TESTS:
        command = [sys.executable, "-m", "pytest", f"tests/simulated/{name}.py", "-x", "-p", "no:cacheprovider"]
        command += ["--override-ini", "addopts=-q --strict-markers"]
        try:
            done = subprocess.run(
                command, cwd=project, env=variables, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{name} (no end after {MOST_SECONDS} s)"
        if done.returncode:
            found = re.search(r"^(?:FAILED|ERROR) tests/simulated/\w+\.py::(\w+)", done.stdout, re.MULTILINE)
            return f"{name}::{found[1]}" if found else f"{name} (exit {done.returncode}): {done.stdout[-300:]}"
    return None


def run(mutations: list[Mutation], project: Path) -> int:
    """Print what catches each mutation; gives how many are caught by nothing."""
    survived = 0
    print("| mutation | caught by |\n|---|---|", flush=True)
    for mutation in mutations:
        path = project / mutation.path
        original = path.read_text("utf-8")
        path.write_text(mutation.source, "utf-8")
        caught = failing_test(project)
        path.write_text(original, "utf-8")
        reason = EXEMPT.get(str(mutation))
        survived += caught is None and reason is None
        print(f"| {mutation} | {caught or reason or 'NOTHING'} |", flush=True)
    return survived


def main() -> int:
    """Run the mutations of the product, or those whose name has a word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the names of mutations")
    parser.add_argument("--list", action="store_true", help="only name them")
    options = parser.parse_args()
    mutations = [mutation for mutation in all_mutations(PROJECT) if options.only in str(mutation)]
    if options.list:
        print(*mutations, sep="\n")
        return 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests"):
            shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(PROJECT / "pyproject.toml", copy)
        if failed := failing_test(copy):
            print(f"without any mutation {failed} fails: mend that first")
            return 1
        survived = run(mutations, copy)
    print(f"{len(mutations)} mutations, {survived} caught by nothing, in {time.monotonic() - started:.0f} s")
    return 1 if survived or not mutations else 0


if __name__ == "__main__":
    sys.exit(main())
