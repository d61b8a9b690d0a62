"""What `-v` and `-vv` say about events, beyond progress."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from ultimate_embedder import events
from ultimate_embedder.terminal import counted


def level_of_detail(event: events.Event) -> int:
    """The level of `logging` at which an event is told in detail."""
    return logging.INFO if isinstance(event, INFORMATIVE) else logging.DEBUG


def detail_of(event: events.Event) -> str:
    """An event in one line, as exact as it is: paths, plans, leases; any other as JSON."""
    name = event.collection
    match event:
        case events.RunStarted():
            return f"chunks are in {Path(event.chunks).absolute()}, the output is {Path(event.output).absolute()}"
        case events.ModelResolved():
            where = f"{event.source} {event.path}"
            return f"{event.model}: {where}, revision {event.revision}, {event.size_bytes / 1e6:,.0f} MB"
        case events.ModelLoaded():
            layers = ", fused layers" if event.fused else ""
            return f"{event.model}: loaded in {event.seconds:.1f} s, tokenizer {event.tokenizer}{layers}"
        case events.LeaseAcquired():
            memory = ", ".join(f"{each.free_bytes / 1e9:.1f} GB free" for each in event.memory)
            evicted = f", evicted {', '.join(event.evicted)}" if event.evicted else ""
            return f"{name}: {event.model} leases {', '.join(event.devices)} ({memory}){evicted}"
        case events.LeaseReleased():
            return f"{name}: {event.model} releases {', '.join(event.devices)}, placed as {event.placement or '-'}"
        case events.ModelEvicted():
            return f"{event.model} is removed from {', '.join(event.devices)}: {event.why}"
        case events.PassStarted():
            limits = [(event.batch_tokens, "tokens"), (event.batch_rows_limit, "rows")]
            asked = "".join(f", at most {most:,} {what} per batch" for most, what in limits if most is not None)
            todo = f"{event.texts - event.stored_texts:,} of {counted(event.texts, 'text')} to encode{asked}"
            return f"{name}: {event.model} in {event.dtype}: {todo}; store {event.fingerprint}"
        case events.PassFinished():
            encoded = f"encoded {counted(event.rows, 'text')} in {event.seconds:.1f} s"
            return f"{name}: {event.model}: {encoded}, at most {counted(event.batch_rows, 'row')} at once"
        case events.VectorsFused():
            vectors = ", ".join(f"{each.name or 'unnamed'} {each.dim or each.kind}" for each in event.vectors)
            return f"{name}: {counted(event.points, 'point')} with the vectors {vectors}"
        case events.ExportWritten():
            done = event.exported
            size = f"{counted(done.rows, 'row')}, {done.size_bytes / 1e6:,.1f} MB in {event.seconds:.1f} s"
            return f"{name}: wrote {done.path}, {size}"
        case events.ChunkRejected():
            return f"{name}: rejected {event.rejected.file} record {event.rejected.position}: {event.rejected.reason}"
        case events.CollectionFinished():
            return f"{name}: {event.status} in {event.seconds:.1f} s"
        case _:
            return json.dumps(event.as_dict(), ensure_ascii=False)


INFORMATIVE = (
    events.RunStarted,
    events.ModelResolved,
    events.ModelLoaded,
    events.LeaseAcquired,
    events.LeaseReleased,
    events.ModelEvicted,
    events.PassStarted,
    events.PassFinished,
    events.VectorsFused,
    events.ExportWritten,
    events.ChunkRejected,
    events.CollectionFinished,
)
"""The events that `-v` tells; `-vv` tells all."""
