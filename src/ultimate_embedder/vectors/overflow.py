"""A note beside the vectors of a pass: fp16 was too narrow for its model, and the pass is computed in fp32.

    overflow.json     what was found; the only file that is left of the pass in fp16

It is read before a pass is planned, so that no later run begins in fp16 again. One that is damaged counts for nothing:
then it is found again.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ultimate_embedder.description import fingerprint
from ultimate_embedder.files import delete
from ultimate_embedder.output import PassOutput
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, state_checksum, write_state
from ultimate_embedder.types import PassIdentity

HALF, FULL = "float16", "float32"


def settled_identity(store: Path, identity: PassIdentity) -> PassIdentity:
    """The identity that a pass has in a store: in fp32, if it was found there that fp16 is too narrow."""
    return in_full_precision(identity) if overflowed(store, identity) else identity


def in_full_precision(identity: PassIdentity) -> PassIdentity:
    """The same pass in fp32."""
    return dataclasses.replace(identity, dtype=FULL)


def overflowed(store: Path, identity: PassIdentity) -> bool:
    """Whether the note is there, and undamaged."""
    return isinstance(read_overflow(store, identity), Overflow)


@dataclasses.dataclass(frozen=True)
class Overflow:
    """Of so many texts, so many had no usable vector in fp16."""

    texts: int
    unusable: int


def read_overflow(store: Path, identity: PassIdentity) -> Overflow | Damaged | None:
    """The note about a pass; None if there is none, as for any pass that is not in fp16."""
    return overflow_note(store / fingerprint(identity)) if identity.dtype == HALF else None


def overflow_note(folder: Path) -> Overflow | Damaged | None:
    """The note in the folder of a pass."""
    return read_state(PassOutput(folder).overflow, lambda fields: _parse(fields, folder.name))


def note_overflow(store: Path, identity: PassIdentity, texts: int, unusable: int) -> None:
    """Write the note, then remove the vectors in fp16: no run will use them again."""
    stored = PassOutput(store / fingerprint(identity))
    found = {"pass": stored.fingerprint, "computed_in": FULL, "texts": texts, "unusable": unusable}
    write_state(stored.overflow, found)
    delete(stored.description)  # first: without it the rest is no pass
    for left in stored.folder.iterdir():
        if left != stored.overflow:
            delete(left)


def _parse(fields: Fields, name: str) -> Overflow:
    if fields.text("pass") != name:
        raise UnfitError("it is of another pass")
    overflow = Overflow(fields.count("texts"), fields.count("unusable"))
    if fields.text("computed_in") != FULL:
        raise UnfitError(f"computed_in is not {FULL}")
    if not fields.sealed:  # an earlier version had its checksum in another field
        values = fields.values()
        if fields.sha256("sha256") != state_checksum({key: values[key] for key in values if key != "sha256"}):
            raise UnfitError("its checksum does not match")
    return overflow
