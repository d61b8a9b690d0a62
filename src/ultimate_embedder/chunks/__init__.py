"""Find collections and read their chunk files."""

from ultimate_embedder.chunks.discover import Discovery, find_collections, is_chunk_file
from ultimate_embedder.chunks.formats import chunk_file_names, guess_suffix, open_text
from ultimate_embedder.chunks.load import LoadedChunks, load_chunks
from ultimate_embedder.chunks.read import read_records
from ultimate_embedder.chunks.split import SPLIT_KEY, split_chunks
from ultimate_embedder.chunks.spool import spooled
from ultimate_embedder.chunks.table import ChunkTable, TableRows, text_key
from ultimate_embedder.chunks.texts import TextList, TextRows

__all__ = [
    "SPLIT_KEY",
    "ChunkTable",
    "Discovery",
    "LoadedChunks",
    "TableRows",
    "TextList",
    "TextRows",
    "chunk_file_names",
    "find_collections",
    "guess_suffix",
    "is_chunk_file",
    "load_chunks",
    "open_text",
    "read_records",
    "split_chunks",
    "spooled",
    "text_key",
]
