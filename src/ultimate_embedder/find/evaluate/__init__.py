"""What each way to search an output is worth, by queries with judgements. `run.py` tells the story."""

from typing import TYPE_CHECKING, Any

from ultimate_embedder.find.evaluate.options import EVALUATION_OUTPUT, EvaluateConfig, make_evaluate_config

if TYPE_CHECKING:
    from ultimate_embedder.find.evaluate.result import Evaluation, Row, read_evaluations
    from ultimate_embedder.find.evaluate.run import evaluate_output
    from ultimate_embedder.find.evaluate.sources import journal_identity

__all__ = [
    "EVALUATION_OUTPUT",
    "EvaluateConfig",
    "Evaluation",
    "Row",
    "evaluate_output",
    "journal_identity",
    "make_evaluate_config",
    "read_evaluations",
]

# imported on first use: --help needs the options, but not numpy and pydantic
_MODULES = {
    "Evaluation": "result",
    "Row": "result",
    "evaluate_output": "run",
    "journal_identity": "sources",
    "read_evaluations": "result",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"ultimate_embedder.find.evaluate.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
