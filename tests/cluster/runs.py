"""Runs on a cluster of this machine, something that happens during them, and what is in their store afterwards."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ultimate_embedder.config import RunConfig
from ultimate_embedder.events import Event, NodeJoined
from ultimate_embedder.options import make_config
from ultimate_embedder.output import Output
from ultimate_embedder.pipeline import run
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.vectors import VectorStore, earlier_identities

WORDS = ("vector", "model", "text", "shard", "ledger", "node", "store", "query", "chunk", "batch", "token", "lease")


def write_texts(folder: Path, count: int, *more: str) -> Path:
    """A collection of texts of several lengths."""
    dice = random.Random(7)
    texts = [f"{number} {' '.join(dice.choices(WORDS, k=dice.randint(5, 40)))}" for number in range(count)]
    texts[count // 2 : count // 2] = more
    chunks = folder / "chunks" / "docs"
    chunks.mkdir(parents=True, exist_ok=True)
    records = [{"chunk_id": f"c{number}", "text": text} for number, text in enumerate(texts)]
    (chunks / "a_chunks.json").write_text(json.dumps(records), encoding="utf-8")
    return folder / "chunks"


class Recorded:
    """The events of a run; `on` acts the first time that a condition is met."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._hooks: list[tuple[Callable[[Event], bool], Callable[[Event], object]]] = []

    def on(self, when: Callable[[Event], bool], act: Callable[[Event], object]) -> None:
        self._hooks.append((when, act))

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        for hook in list(self._hooks):
            if hook[0](event):
                self._hooks.remove(hook)
                hook[1](event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def nodes(self) -> list[str]:
        return [event.node for event in self.of(NodeJoined)]

    def id_of(self, node: str) -> str:
        """What the cluster calls a node."""
        return str(next(event.node_id for event in self.of(NodeJoined) if event.node == node))


def config_for(chunks: Path, output: Path, address: str, **options: Any) -> RunConfig:
    settings = {"exports": "none", "devices": "cpu", "offline": True, "no_report": True, "ray_wait": 60.0, **options}
    return make_config(chunks, output, engine="ray", ray_address=address, **settings)


def embed_on(config: RunConfig, recorded: Recorded, stop: StopSwitch | None = None) -> None:
    run(config, recorded, stop or StopSwitch())


def stored_rows(output: Path, collection: str = "docs") -> tuple[int, int, VectorStore]:
    """Rows in the shards of the one pass of a collection, how many of them are doubled, and the store."""
    root = Output(output).collection(collection).store
    (identity,) = earlier_identities(root)
    store = VectorStore(root, identity, read_only=True)
    keys = store.keys()
    return len(keys), len(keys) - len(np.unique(keys, axis=0)), store


def worst_cosine(output: Path, reference: Path) -> float:
    """Over all texts that the reference has."""
    _, _, ours = stored_rows(output)
    _, _, theirs = stored_rows(reference)
    keys = theirs.keys()
    return float((ours.read(keys) * theirs.read(keys)).sum(axis=1).min())


def largest_difference(output: Path, reference: Path) -> float:
    """Of any number of any vector."""
    _, _, ours = stored_rows(output)
    _, _, theirs = stored_rows(reference)
    keys = theirs.keys()
    return float(np.abs(ours.read(keys) - theirs.read(keys)).max())
