"""Carry out what was planned: the executor of this machine, the loop that encodes, its workers, the ladder."""

from ultimate_embedder.execution.executor import Executor, PassWork, TextSource, VectorSink
from ultimate_embedder.execution.fresh_process import Continuation, Ended, run_in_fresh_process
from ultimate_embedder.execution.full_precision import known_precision
from ultimate_embedder.execution.ladder import COMPANION_TO_CPU, FRESH_PROCESS, LADDER, MITIGATIONS, Mitigation
from ultimate_embedder.execution.local import LocalExecutor, WorkersLearned
from ultimate_embedder.execution.pass_store import open_store
from ultimate_embedder.execution.rerank import RerankModel, RerankScores, rerank
from ultimate_embedder.execution.run import CollectionWork, run_passes
from ultimate_embedder.execution.splitting import split_overlong
from ultimate_embedder.execution.words import count_words

__all__ = [
    "COMPANION_TO_CPU",
    "FRESH_PROCESS",
    "LADDER",
    "MITIGATIONS",
    "CollectionWork",
    "Continuation",
    "Ended",
    "Executor",
    "LocalExecutor",
    "Mitigation",
    "PassWork",
    "RerankModel",
    "RerankScores",
    "TextSource",
    "VectorSink",
    "WorkersLearned",
    "count_words",
    "known_precision",
    "open_store",
    "rerank",
    "run_in_fresh_process",
    "run_passes",
    "split_overlong",
]
