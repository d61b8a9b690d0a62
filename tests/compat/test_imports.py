"""The old import paths: all give the same objects, installed or not, beside modules of the user's own."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ultimate_embedder.compat

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = (
    "UltimateKaggleEmbedderV4",
    "EnsembleConfig",
    "KaggleGPUConfig",
    "KaggleExportConfig",
    "KAGGLE_OPTIMIZED_MODELS",
)
CONFIGS = (*PACKAGE[1:], "RerankingConfig", "AdvancedPreprocessingConfig")
PATHS = {
    "processor.ultimate_embedder": PACKAGE,
    "processor.ultimate_embedder.core": PACKAGE[:1],
    "processor.ultimate_embedder.config": CONFIGS,
    "processor.kaggle_ultimate_embedder_v4": (*PACKAGE[:1], *CONFIGS),
}
# a notebook with a `processor` folder of its own, before and after ours on the path
NOTEBOOK = f"""
import importlib, json, sys
before, ours, after = sys.argv[1:]
sys.path[:0] = [before, *([ours] if ours else []), after]
import processor.my_chunker, processor.my_notes
for path, names in {PATHS!r}.items():
    for name in names:
        getattr(importlib.import_module(path), name)
import processor.ultimate_embedder.core as core, ultimate_embedder
print(json.dumps([processor.my_chunker.SIZE, processor.my_notes.SIZE, core.__file__, ultimate_embedder.__file__]))
"""


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in PATHS.items() for name in names])
def test_every_path_gives_the_same_object(path: str, name: str) -> None:
    assert getattr(importlib.import_module(path), name) is getattr(ultimate_embedder.compat, name)


def test_the_known_models_are_those_that_make_vectors() -> None:
    known = ultimate_embedder.compat.KAGGLE_OPTIMIZED_MODELS
    assert {"jina-code-embeddings-1.5b", "bge-m3"} <= set(known)
    assert all(spec.key == key and spec.dim for key, spec in known.items())


def run_notebook(folder: Path, clone: Path | None) -> list[object]:
    """Import everything in another process, with the clone on its path and nothing installed, or installed."""
    for name, module in (("before", "my_chunker"), ("after", "my_notes")):
        (folder / name / "processor").mkdir(parents=True)
        (folder / name / "processor" / f"{module}.py").write_text(f"SIZE = {len(name)}\n")
    # without site no editable install is seen; libraries are still found
    options, environment = [], dict(os.environ)
    if clone is not None:
        options, environment = ["-S"], {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    words = ["-c", NOTEBOOK, str(folder / "before"), str(clone or ""), str(folder / "after")]
    done = subprocess.run(
        [sys.executable, *options, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


def test_a_bare_clone_on_the_path_is_enough(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for name in ("processor", "src"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    assert run_notebook(tmp_path, clone) == [
        len("before"),
        len("after"),
        str(clone / "processor" / "ultimate_embedder" / "core.py"),
        str(clone / "src" / "ultimate_embedder" / "__init__.py"),
    ]


def test_an_installed_package_leaves_modules_of_the_user_importable(tmp_path: Path) -> None:
    assert run_notebook(tmp_path, None)[:2] == [len("before"), len("after")]
