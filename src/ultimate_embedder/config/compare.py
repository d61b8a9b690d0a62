"""The options of `compare`: name, type, default, help and check of each, in the signature of `make_compare_config`.

The command line and the signature of the Python function `compare` are derived from it.
Annotations are evaluated here (no `from __future__ import annotations`), as they are read at run time.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from ultimate_embedder.config.declared import Option, read_options
from ultimate_embedder.config.parse import at_least
from ultimate_embedder.errors import UsageError

WHAT = "what is compared"
COMPARE_OUTPUT = "output"
SAMPLE_TEXTS = 1000
NEIGHBOURS = 10
PAGE_ENDINGS = (".html", ".htm")


@dataclass(frozen=True)
class CompareConfig:
    """All options of a comparison. The defaults are those of `make_compare_config`."""

    a: Path
    b: Path
    collection: str | None
    sample: int
    neighbours: int
    seed: int
    html: Path | None


def _output_folder(value: str | Path, option: str) -> Path:
    if not Path(value).is_dir():
        raise UsageError(f"{value} is not a folder. Give the --output of an earlier embed.")
    return Path(value)


def _page(value: str | Path, option: str) -> Path:
    path = Path(value)
    if path.suffix.lower() not in PAGE_ENDINGS or path.is_dir():  # nothing of an output is overwritten by accident
        raise UsageError(f"{option} {path}: give the name of a file that ends in .html.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.parent}. Create it, or give another name.")
    return path


def make_compare_config(
    a: Annotated[str | Path, Option("the --output of an embed", WHAT, "A", positional=True, read=_output_folder)],
    b: Annotated[str | Path, Option("that of another", WHAT, "B", positional=True, read=_output_folder)],
    *,
    collection: Annotated[
        str | None, Option("compare only this collection", WHAT, "NAME", default="all that both have")
    ] = None,
    sample: Annotated[
        int,
        Option(
            "texts whose nearest neighbours are compared, 0 for none",
            WHAT,
            "N",
            default=f"{SAMPLE_TEXTS:,}",
            read=partial(at_least, least=0),
        ),
    ] = SAMPLE_TEXTS,
    neighbours: Annotated[
        int,
        Option("neighbours of each of them", WHAT, "K", default=str(NEIGHBOURS), read=partial(at_least, least=1)),
    ] = NEIGHBOURS,
    seed: Annotated[int, Option("chooses the sample; the same seed, the same texts", WHAT, "N", default="0")] = 0,
    html: Annotated[
        str | Path | None, Option("write a page, one file without network", COMPARE_OUTPUT, "FILE", read=_page)
    ] = None,
) -> CompareConfig:
    """Turn the user's options into a valid `CompareConfig`, or raise a `UsageError`."""
    return CompareConfig(**read_options(make_compare_config, locals()))
