"""`pass.json`: what a pass is. Its folder is named after the fingerprint of its identity."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ultimate_embedder.output import PassOutput
from ultimate_embedder.state import Damaged, Fields, UnfitError, read_state, write_state
from ultimate_embedder.types import Bm25Settings, PassIdentity, VectorKind

DENSE_VERSION = 1
STORE_VERSION = 2  # since sparse vectors; dense ones are stored as before
LARGEST_DIM = 1 << 20


@dataclass(frozen=True)
class EncoderFacts:
    """Properties of an encoder that are known only after its model is loaded."""

    max_tokens: int
    document_prompt: str


@dataclass(frozen=True)
class PassDescription:
    """Metadata of a pass."""

    store_version: int
    dim: int | None
    """None if the vectors are sparse."""
    identity: PassIdentity | None
    """None if another version wrote it, with other fields."""
    encoder: EncoderFacts | None
    """None if an earlier version wrote it, without them."""


def fingerprint(identity: PassIdentity) -> str:
    """A hash of everything that affects a vector."""
    return _fingerprint(identity.as_dict())


def parse_identity(record: Mapping[str, Any]) -> PassIdentity | None:
    """The identity of a pass, as it is stored with exports; None if it is damaged, or of another version."""
    return _identity(Fields(record, sealed=True))


def write_description(folder: Path, identity: PassIdentity, dim: int | None, encoder: EncoderFacts | None) -> None:
    """Write the metadata of a pass; `dim` is None if its vectors are sparse."""
    version = DENSE_VERSION if identity.kind == "dense" else STORE_VERSION
    described: dict[str, Any] = {"store_version": version, "dim": dim, "identity": identity.as_dict()}
    if encoder is not None:
        described["encoder"] = dataclasses.asdict(encoder)
    write_state(PassOutput(folder).description, described)


def read_description(folder: Path) -> PassDescription | Damaged | None:
    """The metadata of a pass, which must be those of the pass that the folder is named after."""
    return read_state(PassOutput(folder).description, lambda fields: _parse(fields, folder.name))


def _parse(fields: Fields, name: str) -> PassDescription:
    # a version after this one writes a checksum, so that its number is none that a flipped bit has made
    version = fields.count("store_version", least=1, most=1000 if fields.sealed else STORE_VERSION)
    if version > STORE_VERSION:
        return PassDescription(version, None, None, None)
    identity = fields.inner("identity")
    if _fingerprint(identity.values()) != name:
        raise UnfitError("it describes another pass")
    dim = fields.count_or_none("dim", least=1, most=LARGEST_DIM)
    if (dim is None) != (identity.values().get("kind") == "sparse"):
        raise UnfitError("dim is not that of its kind of vectors")
    return PassDescription(version, dim, _identity(identity), _encoder_facts(fields))


def _fingerprint(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _identity(fields: Fields) -> PassIdentity | None:
    try:
        identity = PassIdentity(
            model=fields.text("model"),
            revision=fields.text("revision"),
            model_digest=fields.text("model_digest"),
            dtype=fields.text("dtype"),
            max_tokens=fields.count_or_none("max_tokens"),
            dim=fields.count_or_none("dim", least=1, most=LARGEST_DIM),
            document_prompt=fields.text_or_none("document_prompt"),
            layout=fields.text("layout"),
            encoder_version=fields.count("encoder_version"),
            overlong=fields.text("overlong") if "overlong" in fields else "truncate",
            overlap=fields.count_or_none("overlap") if "overlap" in fields else None,
            kind=_kind(fields.text("kind")) if "kind" in fields else "dense",
            bm25=bm25_settings(fields.inner("bm25")) if "bm25" in fields else None,
            quantization=fields.text("quantization") if "quantization" in fields else None,
        )
    except UnfitError:
        return None
    return identity if identity.as_dict().keys() == fields.values().keys() else None


def bm25_settings(fields: Fields) -> Bm25Settings:
    """How words are counted, from a state file."""
    return Bm25Settings(
        language=fields.text_or_none("language"),
        tokenizer=fields.text("tokenizer"),
        k=fields.number("k"),
        b=fields.number("b"),
    )


def _kind(word: str) -> VectorKind:
    if word != "sparse":
        raise UnfitError(f"kind {word!r} is not known")
    return "sparse"


def _encoder_facts(fields: Fields) -> EncoderFacts | None:
    if "encoder" not in fields:
        return None
    facts = fields.inner("encoder")
    return EncoderFacts(facts.count("max_tokens", least=1), facts.text("document_prompt"))
