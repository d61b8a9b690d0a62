"""What is said of events while a run goes on: lines that stay, each with the level of `logging` that it has."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from ultimate_embedder import events
from ultimate_embedder.execution import NODE_LOST
from ultimate_embedder.report.live.sentences import mitigation_words
from ultimate_embedder.terminal import counted
from ultimate_embedder.types import FieldsUsed, is_cpu

PROGRESS = (logging.INFO + logging.WARNING) // 2  # the level of what is shown if no level is asked for
MOST_MITIGATIONS = 1000  # that are told: each kind once, unless a log is made to have more
LONGEST_NAME = 1000
Said = tuple[str, int]


class Speaker:
    """Says what matters of each event; of mitigations each kind once per model, as all are in the summary."""

    def __init__(self) -> None:
        self._mitigated: set[tuple[str | None, str, str]] = set()

    def lines(self, event: events.Event) -> Iterator[Said]:
        """The lines about an event."""
        name = event.collection
        match event:
            case events.ChunksLoaded():
                rejected = f", {event.rejected:,} rejected" if event.rejected else ""
                counts = f"{counted(event.loaded, 'chunk')}, {counted(event.distinct_texts, 'distinct text')}{rejected}"
                yield f"{name}: {counts}, read in {event.seconds:.1f} s", PROGRESS
                yield from ((f"{name}: {line}", PROGRESS) for line in _recognised(event.fields))
            case events.ChunksSplit() if event.chunks:
                yield f"{name}: {event.chunks} long chunks were split into {event.segments} points", PROGRESS
            case events.ModelResolved() if event.source in ("download", "refresh"):
                note = event.note or f"downloaded at commit {event.revision}"
                yield f"{event.model}: {note}, {event.size_bytes / 1e6:,.0f} MB in {event.seconds:.1f} s", PROGRESS
            case events.ModelLoaded():
                dims = f"{event.dim} dims" if event.kind == "dense" else f"sparse, {event.dim} words"
                yield f"{event.model}: {dims}, {event.dtype}, {event.max_tokens} tokens", PROGRESS
            case events.NodeJoined():
                yield f"{event.node} joined: {_about_node(event)}", PROGRESS
                for differs in event.differs:
                    words = f"{event.node}: {differs}; the last digits of its vectors may differ"
                    yield f"warning: {words}", logging.WARNING
            case events.NodeRefused():
                yield f"warning: {event.node} ({event.address}) was refused: {event.reason}", logging.WARNING
            case events.Mitigated() if event.kind == NODE_LOST.kind:
                pass  # a warning says it, each time
            case events.ModeChosen() if event.mode != "single":
                shares = ", ".join(f"{model} {weight:.2f}" for model, weight in event.weights.items())
                fused = f"; {event.fusion}: {shares}" if len(event.weights) > 1 else ""
                yield f"{name}: {event.mode} ({event.why}){fused}", PROGRESS
            case events.Mitigated():
                yield from self._mitigation(event)
            case events.CompanionPlaced():
                yield f"{name}: {event.model} works on {event.device}: {event.why}", PROGRESS
            case events.PassStarted() if event.texts <= event.stored_texts:
                which = f" ({event.model})" if event.weight < 1 else ""
                yield f"{name}: reused the vectors of all {event.texts} texts from an earlier run{which}", PROGRESS
            case events.PrecisionChosen():
                ways = [(each.quantization or event.dtype, each) for each in event.measured]
                measured = "; ".join(f"{way} {each.mean_cosine:.5f}, {each.speed:.2f} x" for way, each in ways)
                how = "as an earlier run chose" if event.kept else f"mean cosine and speed in that of fp32: {measured}"
                yield f"{name}: {event.model} in {event.way}, by --min-cosine {event.min_cosine:g} ({how})", PROGRESS
            case events.PrecisionChecked():
                cosines = f"{event.mean_cosine:.5f} mean, {event.worst_cosine:.5f} worst"
                words = f"{name}: {event.dtype} compared with fp32 on {event.texts} texts: cosine {cosines}"
                yield words, PROGRESS
            case events.ServerChanged():
                yield f"{name}: {event.message}", PROGRESS
            case events.GraphBuilding() if event.seconds < 1:
                yield f"{name}: building the search graph of {event.points} points ({event.graph})", PROGRESS
            case events.Retried():
                words = f"cannot {event.what} ({event.reason}), attempt {event.attempt}"
                yield f"{words}: retrying in {event.wait_seconds:.1f} s", logging.WARNING
            case events.Warned():
                yield f"warning: {f'{name}: ' if name else ''}{event.message}", logging.WARNING
            case events.CollectionFinished() if event.error:
                yield f"{name}: {event.status}: {event.error}", logging.ERROR
            case _:
                pass

    def _mitigation(self, event: events.Mitigated) -> Iterator[Said]:
        key = event.collection, event.kind[:LONGEST_NAME], str(event.details.get("model"))[:LONGEST_NAME]
        if key not in self._mitigated and len(self._mitigated) < MOST_MITIGATIONS:
            self._mitigated.add(key)
            yield f"{event.collection}: {mitigation_words(event)}", PROGRESS


def _about_node(event: events.NodeJoined) -> str:
    """`10.0.0.5 (worker-a), 2 x Tesla T4, fp16`; for a CPU its cores."""
    kinds = Counter(each.hardware for each in event.devices)
    devices = ", ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items())
    cores = f" ({counted(event.cores, 'core')})" if all(is_cpu(each.name) for each in event.devices) else ""
    return f"{event.address} ({event.host}), {devices}{cores}, {event.dtype}"


def _recognised(fields: Sequence[FieldsUsed]) -> Iterator[str]:
    """Where text, metadata and ids were found; of several kinds of records, how many there are of each."""
    if all(used.text is None for used in fields):
        return
    for used in fields:
        tool = f" ({used.tool})" if used.tool else ""
        metadata = f", metadata from {used.metadata}" if used.metadata else ""
        ids = f"ids from {used.ids}" if used.ids else "ids made from file and text"
        said = f"text from {used.text}{metadata}, {ids}{tool}" if used.text else "bare strings"
        yield f"{used.records:,} x {said}" if len(fields) > 1 else said
