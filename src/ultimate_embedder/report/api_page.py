"""`docs/api.md`, made from the signatures and docstrings of the public names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import ultimate_embedder

HEADER = """# Python API

Everything below is imported from `ultimate_embedder`. [python.md](python.md) is a guide with examples. This page is
generated from the docstrings (`make generated`).
"""
NAMES = (
    "embed",
    "plan",
    "Embedder",
    "open_output",
    "OpenedOutput",
    "OpenedCollection",
    "search",
    "Hits",
    "Hit",
    "evaluate",
    "upload",
    "compare",
    "RunSummary",
    "Plan",
)
INHERITED = {
    "OpenedOutput": ("folder", "summary", "collections"),
    "OpenedCollection": ("folder", "name", "copy_qdrant", "qdrant"),
}
"""What is worth knowing of the classes below."""
LONGEST_CALL = 100
MODULES = re.compile(r"\b([a-z_]+\.)+(?=[A-Z])")
OPTIONS_MARK = "\n\nOptions:\n"


def api_page() -> str:
    """The whole page."""
    sections = [section for name in NAMES for section in _sections(name, getattr(ultimate_embedder, name))]
    errors = inspect.getdoc(ultimate_embedder.UltimateEmbedderError)
    tree = inspect.getdoc(inspect.getmodule(ultimate_embedder.UltimateEmbedderError))
    return "\n".join([HEADER, *sections, f"## Errors\n\n{errors}\n\n```\n{tree}\n```\n"])


def _sections(name: str, thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield f"## {name}\n\n{_described(name, thing)}"
        return
    yield f"## {name}\n\n{_described(name, thing, with_call=name == 'Embedder')}"
    own = [each for each in vars(thing) if not each.startswith("_")]
    for member in (*INHERITED.get(name, ()), *own):
        found = inspect.getattr_static(thing, member, None)
        if inspect.isfunction(found):
            yield f"### {name}.{member}\n\n{_described(member, found)}"
        elif isinstance(found, property):
            yield f"### {name}.{member}\n\n{inspect.getdoc(found)}\n"


def _described(name: str, thing: Any, with_call: bool = True) -> str:
    text, _, options = (inspect.getdoc(thing) or "").partition(OPTIONS_MARK)
    call = f"```python\n{_call(name, thing)}\n```\n\n" if with_call else ""
    return f"{call}{text}\n" + (_table(options) if options else "")


def _call(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    given = [each for each in signature.parameters.values() if each.name != "self"]
    parameters = [_parameter(each) for each in given]
    kinds = [each.kind for each in given]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = signature.return_annotation
    returns = f" -> {_type(returned)}" if returned not in (inspect.Signature.empty, None, "None") else ""
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= LONGEST_CALL:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in parameters) + f"){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind == parameter.VAR_KEYWORD else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {_type(parameter.annotation)}{default}"


def _type(annotation: Any) -> str:
    """An annotation without the modules of its names; those that are not evaluated are text."""
    words = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return MODULES.sub("", words)


def _table(options: str) -> str:
    rows = [line.strip().partition(": ") for line in options.splitlines()]
    lines = [f"| `{option}` | {_cell(about)} |\n" for option, _, about in rows]
    return "".join(["\n| option | what it does |\n|---|---|\n", *lines])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
