"""The wheel and the sdist, as somebody gets them who has no clone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from ultimate_embedder.report.doctor.packages import OPTIONAL

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCE = PROJECT["urls"]["Source"]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def _build(kind: str, folder: Path) -> Path:
    """Build with the backend of pyproject.toml, from a copy: it writes beside the sources."""
    copy = folder / "source"
    skipped = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=skipped)
    code = f"import setuptools.build_meta as backend; print(backend.build_{kind}({str(folder)!r}))"
    built = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder / built.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment with the wheel, which finds its dependencies in this one."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = _build("wheel", folder)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    packages = next((folder / "venv").rglob("site-packages"))
    # a path in a .pth file is not searched for further .pth files: the editable install of this one is not found
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv/bin/python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    return folder / "venv/bin"


def _run(program: Path, *arguments: str, folder: Path) -> str:
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([program, *arguments], cwd=folder, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_wheel_has_the_command_the_library_and_the_old_names(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "chunks").mkdir()
    (tmp_path / "chunks/docs.jsonl").write_text('{"text": "from a wheel"}\n')
    assert "ultimate-embedder" in _run(installed / "ultimate-embedder", "--version", folder=tmp_path)
    _run(installed / "ultimate-embedder", "embed", "chunks", "--output", "out", "--export", "npy", folder=tmp_path)
    assert (tmp_path / "out/chunks/embeddings.npy").exists()
    code = (
        "import ultimate_embedder, processor.ultimate_embedder.core, processor.kaggle_ultimate_embedder_v4 as old\n"
        "from processor.ultimate_embedder.config import EnsembleConfig\n"
        "from ultimate_embedder import embed\n"
        "print(embed('chunks', 'out').ok, ultimate_embedder.__file__, old.UltimateKaggleEmbedderV4.__name__)\n"
    )
    ok, place, name = _run(installed / "python", "-c", code, folder=tmp_path).split()
    assert (ok, name) == ("True", "UltimateKaggleEmbedderV4")
    assert Path(place).is_relative_to(installed.parent)
    assert (Path(place).parent / "serve/static/live.js").is_file()
    for script in ("embed-collections-v5", "python -m ultimate_embedder.compat.script"):
        program, *arguments = script.split()
        assert "--chunks-root" in _run(installed / program, *arguments, "--help", folder=tmp_path)


def test_the_sdist_has_tests_and_docs(tmp_path: Path) -> None:
    with tarfile.open(_build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = (
        "Makefile",
        "constraints.txt",
        "docs/chunks.md",
        "examples/ask.py",
        "scripts/embed_collections_v5.py",
        "src/ultimate_embedder/devices/simulated/accelerator.cpp",
        "tests/test_packaging.py",
        "tests/support/hub_server.py",
    )
    assert set(wanted) <= names


def test_links_of_the_readme_work_on_the_package_index_and_lead_to_files() -> None:
    for link in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        assert link.startswith("https://"), f"{link}: the package index has no folder to be relative to"
        if link.startswith(SOURCE):
            path = link.removeprefix(f"{SOURCE}/blob/main/").partition("#")[0]
            assert (ROOT / path).is_file(), link


def test_all_and_doctor_know_every_extra_that_is_not_for_developers() -> None:
    extras = PROJECT["optional-dependencies"]
    (named,) = (re.fullmatch(r"ultimate-embedder\[(.*)\]", each) for each in extras["all"])
    assert named is not None
    assert set(named[1].split(",")) == set(OPTIONAL) == set(extras) - {"all", "dev", "docs"}
