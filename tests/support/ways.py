"""The three ways to start a run, with one signature: the V5 script, the command line, Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder import embed
from ultimate_embedder.cli import main
from ultimate_embedder.compat.script import main as v5


@dataclass(frozen=True)
class Ran:
    """A run that has ended: whether it says that all is well, and the summary that it wrote to the requested place."""

    ok: bool
    summary: dict[str, Any]

    @property
    def docs(self) -> dict[str, Any]:
        """What the summary says of the collection docs."""
        (found,) = [each for each in self.summary["collections"] if each["collection"] == "docs"]
        return dict(found)


Way = Callable[..., Ran]


def by_script(chunks: Path, out: Path, models: Sequence[str], summary: Path, *flags: str) -> Ran:
    """Run the V5 script."""
    ensemble = ["--ensemble-models", ",".join(models), "--ensemble-mode", "parallel"] if len(models) > 1 else []
    roots = ["--chunks-root", str(chunks), "--output-root", str(out), "--model", models[0]]
    code = v5([*roots, *ensemble, "--summary", str(summary), *flags])
    return Ran(code == 0, _read(summary))


def by_command_line(chunks: Path, out: Path, models: Sequence[str], summary: Path, *flags: str) -> Ran:
    """Run `ultimate-embedder embed`."""
    command = ["embed", str(chunks), "--output", str(out), "--models", ",".join(models), "--summary", str(summary)]
    mode = ["--mode", "simultaneous"] if len(models) > 1 else []
    code = main([*command, *mode, "--quiet", *flags])
    return Ran(code == 0, _read(summary))


def by_python(chunks: Path, out: Path, models: Sequence[str], summary: Path, *flags: str) -> Ran:
    """Call `embed`; what it gives must be what it wrote."""
    options: dict[str, Any] = {flag.removeprefix("--").replace("-", "_"): True for flag in flags}
    mode = "simultaneous" if len(models) > 1 else "auto"
    given = embed(chunks, out, models=list(models), mode=mode, summary=summary, quiet=True, **options)
    assert given.model_dump(mode="json") == _read(summary)
    return Ran(given.ok, _read(summary))


WAYS: tuple[Way, ...] = (by_script, by_command_line, by_python)


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return read
