"""Whether a fused model gives what sentence-transformers gives, and what is remembered of that."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ultimate_embedder._version import __version__
from ultimate_embedder.config import cache_folder
from ultimate_embedder.machine import processor_identity
from ultimate_embedder.models.canary import CANARY, row_cosines
from ultimate_embedder.models.fused.native import native
from ultimate_embedder.models.fused.settings import FusedSettings, Kernels, NotFusibleError
from ultimate_embedder.state import Fields, read_state, write_state

if TYPE_CHECKING:
    from ultimate_embedder.models.encoder import Encoder

LEAST_COSINE = 0.999999
FUSED = "8"  # counts changes of how a fused model computes
PACKAGES = ("sentence-transformers", "tokenizers", "torch", "transformers")
# white space only, special tokens as users may write them, letters that tokenizers replace
AWKWARD = (*CANARY, "", " \n", "[CLS] a [SEP] [PAD] [MASK] <s> </s> <pad> <mask>", "ＡＢＣ éé ß 1,234.5")
TOO_LONG = "many words " * 6000


@dataclass(frozen=True)
class Checked:
    """The result of a comparison: the settings of the fused model, or why there is none."""

    settings: FusedSettings | None
    problem: str | None
    kernels: Kernels = field(default_factory=Kernels)
    """What it computes with, which is the fastest on this processor."""


def read_checked(digest: str) -> Checked | None:
    """What is known of a model with these files, on these versions and this processor; None if it must be compared."""

    def parse(fields: Fields) -> Checked | None:
        versions = fields.inner("versions")
        if not fields.sealed:
            return None
        if {name: versions.text(name) for name in versions} != _conditions() or fields.text("digest") != digest:
            return None
        problem = fields.text_or_none("problem")
        if problem:
            return Checked(None, problem)
        kernels = Kernels.from_state(fields.inner("kernels"))
        if kernels.need_native and native() is None:  # the compiler is gone, and what it had made
            return None
        return Checked(FusedSettings.from_state(fields.inner("settings")), None, kernels)

    found = read_state(_path(digest), parse)
    return found if isinstance(found, Checked) else None  # what is damaged is compared again


def remember(digest: str, checked: Checked) -> None:
    """Keep a result for later runs; where the cache cannot be written, they compare again."""
    settings = checked.settings.to_state() if checked.settings else {}
    state = {
        "versions": _conditions(),
        "digest": digest,
        "problem": checked.problem,
        "settings": settings,
        "kernels": dataclasses.asdict(checked.kernels),
    }
    with contextlib.suppress(OSError):
        _path(digest).parent.mkdir(parents=True, exist_ok=True)
        write_state(_path(digest), state)


def compare(fused: Encoder, reference: Encoder) -> None:
    """Raise `NotFusibleError` if tokens or vectors differ."""
    if not reference.tokenizes:
        raise NotFusibleError("only sentence-transformers can make its inputs")
    texts = (*AWKWARD, TOO_LONG)
    ours, theirs = fused.tokenize(texts), reference.tokenize(texts)
    if not all(map(np.array_equal, ours.rows, theirs.rows)) or not np.array_equal(ours.over, theirs.over):
        raise NotFusibleError("its tokens differ from those of transformers")
    rows = np.arange(len(AWKWARD))
    expected = reference.forward(reference.batch(theirs, rows)).numpy()
    try:
        found = fused.forward(fused.batch(ours, rows)).numpy()
    except (RuntimeError, IndexError, ValueError) as error:
        raise NotFusibleError(f"its layers cannot be run ({error})") from error
    cosine = float(row_cosines(found, expected).min())
    if not cosine >= LEAST_COSINE:
        raise NotFusibleError(f"its vectors differ from those of transformers (cosine {cosine:.6f})")


def _path(digest: str) -> Path:
    return cache_folder() / "fused" / f"{digest[:32]}.json"


def _conditions() -> Mapping[str, str]:
    """What a result depends on."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    return {"ultimate-embedder": __version__, "fused": FUSED, "processor": processor_identity(), **versions}
