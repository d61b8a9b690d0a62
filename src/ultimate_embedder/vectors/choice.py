"""`choice-PASS.json` in a store: what `--min-cosine` chose for a pass, and what it measured. Later runs keep it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ultimate_embedder.description import fingerprint
from ultimate_embedder.output import choice_file
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state
from ultimate_embedder.types import MeasuredWay, PassIdentity


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was measured, and which of it was chosen."""

    chosen: MeasuredWay
    measured: tuple[MeasuredWay, ...]


def unchosen(identity: PassIdentity) -> PassIdentity:
    """The identity that a pass has before a way is chosen: what all its ways have in common."""
    return dataclasses.replace(identity, quantization=None)


def read_choice(store: Path, identity: PassIdentity) -> Choice | Damaged | None:
    """What an earlier run has chosen for a pass, whatever way `identity` has."""
    name = fingerprint(unchosen(identity))
    return read_state(choice_file(store, name), lambda fields: _parse(fields, name))


def write_choice(store: Path, identity: PassIdentity, chosen: MeasuredWay, measured: Sequence[MeasuredWay]) -> None:
    """Keep a choice for later runs."""
    name = fingerprint(unchosen(identity))
    ways = [dataclasses.asdict(each) for each in measured]
    choice_file(store, name).parent.mkdir(parents=True, exist_ok=True)
    write_state(choice_file(store, name), {"pass": name, "chosen": measured.index(chosen), "measured": ways})


def _parse(fields: Fields, name: str) -> Choice:
    if not fields.sealed:
        raise UnfitError("it has no checksum")
    if fields.text("pass") != name:
        raise UnfitError("it is of another pass")
    measured = tuple(
        MeasuredWay(
            quantization=each.text_or_none("quantization"),
            texts=each.count("texts"),
            mean_cosine=each.number("mean_cosine"),
            worst_cosine=each.number("worst_cosine"),
            speed=each.number("speed"),
        )
        for each in fields.inner_list("measured")
    )
    if not measured:
        raise UnfitError("nothing was measured")
    return Choice(measured[fields.count("chosen", most=len(measured) - 1)], measured)
