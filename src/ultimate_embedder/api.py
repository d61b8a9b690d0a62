"""The Python entry point: a run with everything that watches it."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.config import RunConfig, make_config, suggest
from ultimate_embedder.errors import UltimateEmbedderError, UsageError
from ultimate_embedder.events import Emit, RunFinished, RunStarted, Warned, fan_out
from ultimate_embedder.output import Output
from ultimate_embedder.passes import EncoderPool
from ultimate_embedder.pipeline import run
from ultimate_embedder.report import EventLog, RunSummary, SummaryBuilder, make_progress
from ultimate_embedder.stop import StopSwitch


def embed(chunks: str | Path, output: str | Path, *, quiet: bool = False, **options: Any) -> RunSummary:
    """Embed every collection below `chunks` into `output` and give the summary.

    Takes the options of the command line, with underscores: `models=["bge-m3"]`, `max_tokens=512`,
    `exports=["npy"]`. A collection that fails is in the summary (`summary.ok` is False then); what keeps
    the whole run from starting (a missing model, a wrong option) is raised.
    """
    known = [name for name in inspect.signature(make_config).parameters if name not in ("chunks", "output")]
    for name in options:
        if name not in known:
            raise UsageError(f"embed() has no option {name!r}.{suggest(name, known)}")
    return run_and_report(make_config(chunks, output, **options), quiet=quiet)


def run_and_report(
    config: RunConfig, *, quiet: bool, watch: Sequence[Emit] = (), encoders: EncoderPool | None = None
) -> RunSummary:
    """Run, show progress, and leave the event log and the summary behind, however the run ends.

    `watch` is told every event too; `encoders` may hold models that were loaded before.
    """
    started = time.perf_counter()
    builder = SummaryBuilder()
    output, copy = Output(config.output), config.summary
    stop = StopSwitch(config.deadline_s)
    with contextlib.ExitStack() as stack:
        stack.enter_context(stop.on_signals())
        sinks: list[Emit] = [*watch, builder, stack.enter_context(make_progress(quiet))]
        if not config.dry_run:
            log = EventLog(output.events_path)
            stack.callback(log.close)
            sinks[:0] = [log, lambda event: output.forget_summary(copy) if isinstance(event, RunStarted) else None]
        emit = fan_out(sinks)
        try:
            run(config, emit, stop, encoders)
        except BaseException as error:
            emit(RunFinished(error=_in_words(error), seconds=time.perf_counter() - started))
            raise
        finally:
            if builder.began and not config.dry_run:
                if log.problem:
                    emit(Warned(message=log.problem))
                output.write_summary(builder.summary, copy)
    return builder.summary


def _in_words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, UltimateEmbedderError) else f"{type(error).__name__}: {error}"
