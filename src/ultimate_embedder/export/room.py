"""How much disk space exports take, estimated from a sample of the chunks before anything is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultimate_embedder.export.format import ExportSize
from ultimate_embedder.payload import parse_record, payload

if TYPE_CHECKING:
    from ultimate_embedder.chunks import ChunkTable, TableRows

SAMPLE_BLOCKS = 4
BLOCK_BYTES = 128  # of Edge's payload storage


def measure_payloads(collection: str, table: ChunkTable) -> ExportSize:
    """The size of all payloads, as each export stores them; the vectors are not known yet."""
    import numpy as np

    chosen = np.zeros(len(table), bool)
    chosen[np.linspace(0, len(table) - 1, SAMPLE_BLOCKS).astype(int)] = True
    rows = json_bytes = zstd_bytes = blocked_bytes = 0
    for block in table.blocks(chosen):
        plain = [_plain(collection, block, row) for row in range(len(block.ids))]
        rows += len(plain)
        json_bytes += sum(map(len, plain))
        zstd_bytes += _compressed("zstd", b"".join(plain))
        blocked_bytes += sum(-(-_compressed("lz4_raw", each) // BLOCK_BYTES) * BLOCK_BYTES for each in plain)
    share = len(table) / max(1, rows)
    return ExportSize(len(table), 0, int(json_bytes * share), int(zstd_bytes * share), int(blocked_bytes * share))


def _plain(collection: str, block: TableRows, row: int) -> bytes:
    import json

    record = parse_record(block.records[row])
    made = payload(block.ids[row], collection, block.files[row], block.texts[row], record)
    return json.dumps(made, ensure_ascii=False).encode()


def _compressed(codec: str, content: bytes) -> int:
    import pyarrow as pa

    return len(pa.compress(content, codec=codec, asbytes=True))
