"""Find collections and read their chunk files."""

from ultimate_embedder.chunks.discover import Discovery, find_collections, is_chunk_file
from ultimate_embedder.chunks.formats import chunk_file_names
from ultimate_embedder.chunks.load import LoadedChunks, load_chunks
from ultimate_embedder.chunks.split import split_chunks
from ultimate_embedder.chunks.spool import spooled
from ultimate_embedder.chunks.table import ChunkTable, TableRows, text_key
from ultimate_embedder.chunks.texts import TextList, TextRows

__all__ = [
    "ChunkTable",
    "Discovery",
    "LoadedChunks",
    "TableRows",
    "TextList",
    "TextRows",
    "chunk_file_names",
    "find_collections",
    "is_chunk_file",
    "load_chunks",
    "split_chunks",
    "spooled",
    "text_key",
]
