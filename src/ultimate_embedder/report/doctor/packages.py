"""Python, the packages that are needed, and those that are optional."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ultimate_embedder._version import __version__
from ultimate_embedder.report.doctor.check import Check

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PROGRAM = "ultimate-embedder"
SHOWN = (
    *("transformers", "sentence-transformers", "huggingface-hub"),
    *("qdrant-client", "qdrant-edge-py"),
)
"""Packages with a line of their own; torch has another check, the rest share a line."""
OPTIONAL = {
    "onnx": "--backend onnx",
    "openvino": "--backend openvino",
    "completion": "completion by the shell",
    "evaluate": "evaluate",
    "minilm": "the default model without a download",
    "otel": "--otel",
    "ray": "--engine ray",
    "serve": "serve",
}
"""Extras, and what each is for."""
REINSTALL = f"pip install --upgrade --force-reinstall {PROGRAM}"


def check_python() -> Check:
    """The interpreter against what the package metadata asks for."""
    from packaging.specifiers import SpecifierSet

    system = f"{platform.system()} {platform.machine()}"
    found = f"{platform.python_version()} ({platform.python_implementation()}, {system})"
    try:
        wanted = importlib.metadata.metadata(PROGRAM)["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        return Check("python", "warning", f"{found}; {PROGRAM} runs without being installed", f"pip install {PROGRAM}")
    if not SpecifierSet(wanted).contains(platform.python_version(), prereleases=True):
        return Check(
            "python", "problem", f"{found}; needed is {wanted}", "install a newer Python, and the program in it"
        )
    if sys.maxsize <= 1 << 32:
        return Check("python", "problem", f"{found}, 32 bits", "install a Python of 64 bits: torch needs it")
    return Check("python", "ok", found)


def check_program() -> Check:
    """The version of this program."""
    return Check("ultimate-embedder", "ok", __version__)


def check_packages() -> Iterator[Check]:
    """The packages that are needed, with their versions against the ranges of our metadata."""
    required = [each for each in _requirements() if _applies(each, "")]
    for name in SHOWN:
        yield _check_package([each for each in required if each.name == name], name)
    yield _check_package([each for each in required if each.name not in (*SHOWN, "torch")], "other packages")


def check_torch_version() -> str | None:
    """What is wrong with the version of torch, without importing it; None if nothing is."""
    torch = [each for each in _requirements() if each.name == "torch" and _applies(each, "")]
    return next((problem for each in torch if (problem := _problem(each))), None)


def check_extras() -> Iterator[Check]:
    """The optional packages."""
    requirements = _requirements()
    for extra, purpose in OPTIONAL.items():
        wanted = [each for each in requirements if not _applies(each, "") and _applies(each, extra)]
        if not wanted:  # installed from metadata of another version
            continue
        install = f"pip install '{PROGRAM}[{extra}]'"
        missing = [each.name for each in wanted if _version(each.name) is None]
        problems = [problem for each in wanted if each.name not in missing and (problem := _problem(each))]
        versions = ", ".join(f"{each.name} {_version(each.name)}" for each in wanted if each.name not in missing)
        if problems:
            yield Check(f"extra {extra}", "warning", "; ".join(problems), install)
        elif missing:
            found = f"{', '.join(missing)} not installed; optional, for {purpose}"
            yield Check(f"extra {extra}", "ok", found, install)
        else:
            yield Check(f"extra {extra}", "ok", versions)


def _check_package(required: list[Requirement], name: str) -> Check:
    problems = [problem for each in required if (problem := _problem(each))]
    if problems:
        wanted = " ".join(f"'{each.name}{each.specifier}'" for each in required if _problem(each))
        return Check(name, "problem", "; ".join(problems), f"pip install --upgrade {wanted}")
    if len(required) == 1:
        return Check(name, "ok", f"{_version(required[0].name)} (needed: {required[0].specifier})")
    return Check(name, "ok", ", ".join(f"{each.name} {_version(each.name)}" for each in required))


def _requirements() -> list[Requirement]:
    from packaging.requirements import Requirement

    try:
        return [Requirement(line) for line in importlib.metadata.requires(PROGRAM) or []]
    except importlib.metadata.PackageNotFoundError:
        return []


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _problem(requirement: Requirement) -> str | None:
    version = _version(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name} {version} is outside {requirement.specifier}"
