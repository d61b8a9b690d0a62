"""Imports point one way: vocabulary <- parts <- passes, export <- pipeline <- report <- options <- api <- cli."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "ultimate_embedder"
LEVELS = [
    {
        "_version",
        "types",
        "child",
        "edge",
        "errors",
        "events",
        "config",
        "description",
        "files",
        "heartbeat",
        "history",
        "late",
        "lock",
        "locks",
        "machine",
        "markup",
        "messages",
        "names",
        "output",
        "payload",
        "planned",
        "retry",
        "sparse",
        "state",
        "stop",
        "summary",
        "terminal",
    },
    {"chunks", "models", "devices", "batching", "vectors"},
    {"planning"},
    {"session"},
    {"execution", "export"},
    {"find", "inputs"},
    {"pipeline", "status", "texts", "verify"},
    {"estimate"},
    {"report", "continued"},
    {"options"},
    {"api"},
    {"contents", "embedder"},
    {"serve"},
    {"cli"},
    {"compat"},
    {"__init__", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
MODULES = sorted(SOURCE.rglob("*.py"))


def _part(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "ultimate_embedder":
                yield from (f"ultimate_embedder.{alias.name}" for alias in node.names)


@pytest.fixture(scope="module")
def imported() -> list[tuple[Path, str]]:
    """Each module of ours, with each module that it imports."""
    return [(path, module) for path in MODULES for module in _imports(path)]


def test_a_module_imports_only_from_below(imported: list[tuple[Path, str]]) -> None:
    for path, module in imported:
        if not module.startswith("ultimate_embedder."):
            continue
        mine, theirs = _part(path), module.split(".")[1]
        if theirs == mine or theirs == "__version__":
            continue
        assert LEVEL[theirs] < LEVEL[mine] or LEVEL[mine] == 0 == LEVEL[theirs], f"{path} imports {module}"


def test_a_part_uses_other_parts_only_through_their_front_door(imported: list[tuple[Path, str]]) -> None:
    for path, module in imported:
        words = module.split(".")
        if words[0] == "ultimate_embedder" and len(words) > 2:
            assert words[1] == _part(path), f"{path}: {module} is an inside of {words[1]}"


def test_every_module_has_its_level() -> None:
    assert {_part(path) for path in MODULES} == set(LEVEL)
