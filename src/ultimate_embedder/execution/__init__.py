"""Carry out what was planned: the executor of this machine, the loop that encodes, its workers, the ladder."""

from ultimate_embedder.execution.batch_limits import batch_limits
from ultimate_embedder.execution.engine import Engine, LocalEngine, open_engine
from ultimate_embedder.execution.executor import Executor, PassWork, TextSource, VectorSink
from ultimate_embedder.execution.fresh_process import Continuation, Ended, run_in_fresh_process
from ultimate_embedder.execution.full_precision import known_precision
from ultimate_embedder.execution.ladder import (
    COMPANION_TO_CPU,
    FRESH_PROCESS,
    LADDER,
    MITIGATIONS,
    NODE_LOST,
    Mitigation,
)
from ultimate_embedder.execution.local import LocalExecutor, WorkersLearned, memory_need
from ultimate_embedder.execution.pass_store import open_store
from ultimate_embedder.execution.precision_choice import choose_ways, known_way
from ultimate_embedder.execution.rerank import RerankModel, RerankScores, rerank
from ultimate_embedder.execution.run import CollectionWork, run_passes
from ultimate_embedder.execution.runner import GUESSED_BYTES_PER_TOKEN
from ultimate_embedder.execution.splitting import EnsembleSplitter, split_overlong
from ultimate_embedder.execution.windows import TableTexts, Window, cutter_for, first_occurrences, tokenize_windows
from ultimate_embedder.execution.words import count_words

__all__ = [
    "COMPANION_TO_CPU",
    "FRESH_PROCESS",
    "GUESSED_BYTES_PER_TOKEN",
    "LADDER",
    "MITIGATIONS",
    "NODE_LOST",
    "CollectionWork",
    "Continuation",
    "Ended",
    "Engine",
    "EnsembleSplitter",
    "Executor",
    "LocalEngine",
    "LocalExecutor",
    "Mitigation",
    "PassWork",
    "RerankModel",
    "RerankScores",
    "TableTexts",
    "TextSource",
    "VectorSink",
    "Window",
    "WorkersLearned",
    "batch_limits",
    "choose_ways",
    "count_words",
    "cutter_for",
    "first_occurrences",
    "known_precision",
    "known_way",
    "memory_need",
    "open_engine",
    "open_store",
    "rerank",
    "run_in_fresh_process",
    "run_passes",
    "split_overlong",
    "tokenize_windows",
]
