"""`agreement.json`, beside the vectors of a pass in low precision: how near they are to fp32."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ultimate_embedder.output import PassOutput
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state

POOR_MEAN_COSINE = 0.99  # below it neighbours change places


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Cosines of vectors with their counterparts in fp32."""

    texts: int
    mean_cosine: float
    worst_cosine: float

    @property
    def poor(self) -> bool:
        """Whether searches would find other things."""
        return self.mean_cosine < POOR_MEAN_COSINE


def write_agreement(folder: Path, found: Agreement) -> None:
    """Keep what was measured with the vectors of the pass."""
    write_state(PassOutput(folder).agreement, {"pass": folder.name, **dataclasses.asdict(found)})


def read_agreement(folder: Path) -> Agreement | Damaged | None:
    """What an earlier run has measured."""
    return read_state(PassOutput(folder).agreement, lambda fields: _parse(fields, folder.name))


def _parse(fields: Fields, name: str) -> Agreement:
    if "pass" in fields and fields.text("pass") != name:  # earlier versions do not say which
        raise UnfitError("it is of another pass")
    return Agreement(fields.count("texts"), fields.number("mean_cosine"), fields.number("worst_cosine"))
