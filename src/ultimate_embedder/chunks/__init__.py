"""Find collections and read their chunk files."""

from ultimate_embedder.chunks.discover import Discovery, find_collections
from ultimate_embedder.chunks.formats import chunk_file_names
from ultimate_embedder.chunks.load import LoadedChunks, load_chunks
from ultimate_embedder.chunks.spool import spooled
from ultimate_embedder.chunks.table import ChunkTable, TableRows, text_key

__all__ = [
    "ChunkTable",
    "Discovery",
    "LoadedChunks",
    "TableRows",
    "chunk_file_names",
    "find_collections",
    "load_chunks",
    "spooled",
    "text_key",
]
