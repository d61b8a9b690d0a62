"""A note beside the vectors of a pass: fp16 was too narrow for its model, and the pass is computed in fp32.

    overflow.json     what was found, with a checksum; the only file that is left of the pass in fp16

It is read before a pass is planned, so that no later run begins in fp16 again. One that is damaged counts for nothing:
then it is found again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from ultimate_embedder.files import write_json
from ultimate_embedder.output import PassOutput
from ultimate_embedder.types import PassIdentity
from ultimate_embedder.vectors.store import fingerprint

HALF, FULL = "float16", "float32"


def settled_identity(store: Path, identity: PassIdentity) -> PassIdentity:
    """The identity that a pass has in a store: in fp32, if it was found there that fp16 is too narrow."""
    return in_full_precision(identity) if overflowed(store, identity) else identity


def in_full_precision(identity: PassIdentity) -> PassIdentity:
    """The same pass in fp32."""
    return dataclasses.replace(identity, dtype=FULL)


def overflowed(store: Path, identity: PassIdentity) -> bool:
    """Whether the note is there, and undamaged."""
    if identity.dtype != HALF:
        return False
    try:
        noted = json.loads(_path(store, identity).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(noted, dict):
        return False
    checksum = noted.pop("sha256", None)
    return noted.get("pass") == fingerprint(identity) and checksum == _checksum(noted)


def note_overflow(store: Path, identity: PassIdentity, texts: int, unusable: int) -> None:
    """Write the note, then remove the vectors in fp16: no run will use them again."""
    found = {"pass": fingerprint(identity), "computed_in": FULL, "texts": texts, "unusable": unusable}
    path = _path(store, identity)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**found, "sha256": _checksum(found)})
    PassOutput(path.parent).description.unlink(missing_ok=True)  # first: without it the rest is no pass
    for left in path.parent.iterdir():
        if left != path:
            left.unlink()


def _path(store: Path, identity: PassIdentity) -> Path:
    return PassOutput(store / fingerprint(identity)).overflow


def _checksum(found: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
