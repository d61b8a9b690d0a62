"""Compile the accelerator on first use, once per source and torch version."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import ModuleType

from ultimate_embedder.config import cache_folder
from ultimate_embedder.errors import UsageError
from ultimate_embedder.terminal import show

MODULE = "simulated_accelerator"
MAIN_SOURCE = "accelerator.cpp"  # includes the headers beside it
LEAST_TORCH = (2, 9)  # as the message below says: an allocator of one's own is a class of torch's only since then


def load_extension() -> ModuleType:
    """The compiled module; builds it if this source and this torch have not been built here before."""
    import torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LEAST_TORCH:
        raise UsageError(
            f"simulated devices need torch 2.9 or newer, and this is {torch.__version__}. "
            "Use --devices cpu, or the card if there is one."
        )
    library = cache_folder() / f"{MODULE}-{_fingerprint()}.so"
    if not library.exists():
        _build(library)
    spec = importlib.util.spec_from_file_location(MODULE, library)
    if spec is None or spec.loader is None:
        raise UsageError(f"{library} cannot be loaded. Delete it; it will be built again.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fingerprint() -> str:
    import torch

    digest = hashlib.sha256(f"{torch.__version__} {sys.version} {platform.machine()}".encode())
    for source in [*sorted(_source(MAIN_SOURCE).parent.glob("*.h")), _source(MAIN_SOURCE)]:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _build(library: Path) -> None:
    compiler = os.fspath(shutil.which("g++") or "")
    if not compiler:
        raise UsageError(
            "simulated devices are compiled on first use and g++ is not here. Install it ('apt-get install g++', "
            "'dnf install gcc-c++'), or use --devices cpu."
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    show("building the simulated accelerator (about half a minute, once) ...", sys.stderr)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        done = subprocess.run(_command(compiler, built), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            log = library.with_suffix(".log")
            log.write_text(done.stderr)
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
            raise UsageError(f"the simulated accelerator does not compile with this torch ({first}); see {log}")
        built.replace(library)  # a second process that builds at the same time does no harm
    show(f"built in {time.monotonic() - started:.0f} s: {library}", sys.stderr)


def _command(compiler: str, built: Path) -> list[str]:
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    includes = [f"-I{path}" for path in (*include_paths(), sysconfig.get_paths()["include"])]
    libraries = [f"-L{path}" for path in library_paths()]
    abi = int(torch.compiled_with_cxx11_abi())
    defines = [f"-DTORCH_EXTENSION_NAME={MODULE}", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    # -O1: the bytes are moved by torch's own kernels; what is compiled here only keeps the books
    options = ["-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-w"]
    links = ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"]
    return [
        compiler,
        *options,
        *defines,
        *includes,
        str(_source(MAIN_SOURCE)),
        *libraries,
        *links,
        "-o",
        str(built),
    ]


def _source(name: str) -> Path:
    return Path(__file__).with_name(name)
