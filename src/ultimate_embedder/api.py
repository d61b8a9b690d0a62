"""The Python entry point: a run with progress, event log and summary."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultimate_embedder.config import (
    CompareConfig,
    RunConfig,
    history_path,
    make_compare_config,
    must_check_locks,
    option_list,
    options_by_name,
    with_options_of,
)
from ultimate_embedder.errors import UltimateEmbedderError, UsageError
from ultimate_embedder.estimate import SESSION, PlanOptions, make_plan_options
from ultimate_embedder.events import Emit, RunFinished, RunStarted, Warned, fan_out
from ultimate_embedder.export import UploadConfig, UploadReport, make_upload_config
from ultimate_embedder.find import (
    EvaluateConfig,
    Evaluation,
    Hits,
    SearchConfig,
    make_evaluate_config,
    make_search_config,
)
from ultimate_embedder.history import HistoryRecorder
from ultimate_embedder.locks import check_lock_order
from ultimate_embedder.options import make_config
from ultimate_embedder.output import Output
from ultimate_embedder.pipeline import run
from ultimate_embedder.report import (
    Comparison,
    EventLog,
    Listener,
    RunSummary,
    SummaryBuilder,
    add_exports,
    make_progress,
    try_report,
)
from ultimate_embedder.session import Session
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.terminal import valid_unicode

if TYPE_CHECKING:
    from ultimate_embedder.estimate import Asked, Report
    from ultimate_embedder.find import QueryModels
    from ultimate_embedder.planned import Plan
    from ultimate_embedder.report import Telemetry


@with_options_of(make_config)
def embed(config: RunConfig) -> RunSummary:
    """Embed every collection below `chunks` into `output` and return the summary.

    Takes the options of the command line, with underscores: `models=["bge-m3"]`, `max_tokens=512`,
    `exports=["npy"]`. A collection that fails is recorded in the summary (`summary.ok` is False then); an error
    that prevents the run from starting (a missing model, an invalid option) is raised.
    """
    return run_and_report(config, quiet=config.quiet)


@with_options_of(make_upload_config)
def upload(config: UploadConfig) -> list[UploadReport]:
    """Send every collection in `folder`, the output of `embed`, to a Qdrant server; gives a report for each.

    Takes the options of the command line, with underscores: `batch_size=256`, `payload_index=["page:integer"]`.
    After an interruption call it again to resume: points are never duplicated. With `dry_run=True` the reports say
    what would be done.
    """
    from ultimate_embedder.export import upload_points  # qdrant-client takes a second to import

    with make_progress(config.quiet) as progress:
        return upload_points(config, progress)


def plan(
    chunks: str | Path | Iterable[Any],
    output: str | Path | None = None,
    *,
    gpus: str | None = None,
    calibrate: bool = False,
    price_per_hour: float | None = None,
    session: str | float = SESSION,
    nodes: int | None = None,
    **options: Any,
) -> Plan:
    """What embedding `chunks` into `output` will take: tokens, memory, disk, time, cost. Nothing is computed.

    `options` are those of `embed`: models, mode, precision, max_tokens and so on. Weights of models are not needed.
    Without `output` nothing counts as stored; with it, the plan is written there for the next `embed` to compare with.
    """
    own = make_plan_options(gpus=gpus, calibrate=calibrate, price_per_hour=price_per_hour, session=session, nodes=nodes)
    asked = ask_for_plan(chunks, output, options_by_name(options, make_config, "plan"), own)
    return plan_and_store(asked, quiet=asked.run.quiet)


plan.__doc__ = f"{inspect.cleandoc(plan.__doc__ or '')}\n\nOptions:\n{option_list(make_plan_options)}"


def ask_for_plan(
    chunks: Any, output: Any, options: Mapping[str, Any], own: PlanOptions, command: Sequence[str] = ()
) -> Asked:
    """The checked options of a plan; without an output, one that does not exist is looked at."""
    from ultimate_embedder.estimate import Asked  # slow to import, and a run does not need it

    nowhere = Path(tempfile.gettempdir()) / f"no-output-{uuid.uuid4().hex}"
    config = make_config(chunks, nowhere if output is None else output, **options)
    return Asked(config, own, has_output=output is not None, command=tuple(map(valid_unicode, command)))


def plan_and_store(asked: Asked, *, quiet: bool, least_level: int | None = None, report: Report | None = None) -> Plan:
    """Make a plan, and put it into its output, if it has one; nothing else is changed there."""
    from ultimate_embedder.estimate import make_plan, no_report
    from ultimate_embedder.planned import write_plan

    stop = StopSwitch()
    with contextlib.ExitStack() as stack:
        stack.enter_context(stop.on_signals())
        emit = fan_out([stack.enter_context(make_progress(quiet, least_level))])
        made = make_plan(asked, emit, report=report or no_report, stop=stop)
    if asked.has_output:
        write_plan(Output(asked.run.output), made)
    return made


@with_options_of(make_search_config)
def search(config: SearchConfig) -> Hits:
    """Find the chunks of `output`, an output of `embed`, that answer `question` best.

    Takes the options of the command line, with underscores: `top=3`, `filter={"page": 3}`, `using=["bge-m3"]`.
    Models are loaded for the call; `open_output(OUT).search(...)` keeps them for the next one.
    """
    return run_search(config)


def run_search(config: SearchConfig, models: QueryModels | None = None) -> Hits:
    """Search, with models that may have been loaded before; what matters becomes Python warnings."""
    from ultimate_embedder.find import Searcher

    listener = Listener(progress=False)
    try:
        with listener.listening() as emit, Searcher(config.place, emit, models) as searcher:
            return searcher.search(config.request)
    finally:
        listener.warn(stacklevel=5)


@with_options_of(make_compare_config)
def compare(config: CompareConfig) -> Comparison:
    """Compare two outputs: what their runs did, and how far their vectors agree on the texts that both have.

    Takes the options of the command line. Vectors of different models are compared by their nearest neighbours alone,
    as a cosine between them has no meaning.
    """
    return run_comparison(config)


@with_options_of(make_evaluate_config)
def evaluate(config: EvaluateConfig) -> Evaluation:
    """Measure what each way to search an output is worth: every model, fusion and size of vectors, by judged queries.

    Takes the options of the command line, with underscores. `queries` may be a dictionary of ids and texts, and `qrels`
    one of query ids, each with a dictionary of chunk ids and grades. The result is kept in the output, if that can be
    written to, and shown by its report.
    """
    return run_evaluation(config)


def run_evaluation(config: EvaluateConfig, least_level: int | None = None) -> Evaluation:
    """Evaluate with progress, write the page if one was asked for, and make the report of the output anew."""
    from ultimate_embedder.find import evaluate_output
    from ultimate_embedder.report import write_evaluation_page

    with make_progress(config.quiet, least_level) as progress:
        found = evaluate_output(config, progress)
    if config.html is not None:
        write_evaluation_page(found, config.html)
    output = Output(config.folder)
    if output.report_path.is_file():
        try_report(output)  # on a read-only disk it stays as it is
    return found


def run_comparison(config: CompareConfig) -> Comparison:
    """Compare, and write the page if one was asked for."""
    from ultimate_embedder.report import compare_outputs, write_comparison_page  # a run needs neither

    found = compare_outputs(config)
    if config.html is not None:
        write_comparison_page(found, config.html)
    return found


def run_and_report(
    config: RunConfig,
    *,
    quiet: bool,
    least_level: int | None = None,
    watch: Sequence[Emit] = (),
    session: Session | None = None,
    builder: SummaryBuilder | None = None,
    adds_to: RunSummary | None = None,
    command: Sequence[str] = (),
) -> RunSummary:
    """Run, show progress, and write the event log, the summary and the report, even if the run fails.

    `least_level` is the level of `logging` from which messages are shown; `command` is the command line as typed.
    `watch` gets every event too, before `builder`, which makes the summary; `session` may hold devices and models that
    an earlier run has opened. A run that only exports the vectors of an earlier one `adds_to` the summary and the event
    log of that one; if it had to encode something it is a run of its own.
    """
    if must_check_locks():
        check_lock_order(True)
    started = time.perf_counter()
    builder = builder or SummaryBuilder()
    output, copy = Output(config.output), config.summary
    stop = StopSwitch(config.deadline_s)
    with contextlib.ExitStack() as stack:
        stack.enter_context(stop.on_signals())
        telemetry = _telemetry(lambda message: emit(Warned(message=message))) if config.otel else None
        sinks: list[Emit] = [*watch, builder, stack.enter_context(make_progress(quiet, least_level))]
        if telemetry is not None:
            sinks.append(telemetry)
            stack.callback(telemetry.close)
        if not config.dry_run:
            log = EventLog(output.events_path, append=adds_to is not None)
            stack.callback(log.close)
            sinks.insert(0, log)
            if (history := history_path()) is not None:
                sinks.append(HistoryRecorder(history))
            if adds_to is None:
                sinks.insert(1, lambda event: output.delete_summary(copy) if isinstance(event, RunStarted) else None)
        emit = fan_out(sinks)
        existed, was_output, refused = config.output.exists(), output.exists, False
        try:
            run(config, emit, stop, session, command)
        except BaseException as error:
            refused = isinstance(error, UsageError) and not was_output
            emit(RunFinished(error=_describe_error(error), seconds=time.perf_counter() - started))
            raise
        finally:
            if telemetry is not None:
                telemetry.close()
            if builder.began and not config.dry_run:
                if log.problem:
                    emit(Warned(message=log.problem))
                if refused:
                    log.close()
                    _remove_new_output(output, existed)
                else:
                    output.write_summary(_record(builder.summary, adds_to), copy)
                    if not config.no_report and (problem := try_report(output)):
                        emit(Warned(message=problem))
                        output.write_summary(_record(builder.summary, adds_to), copy)
    return _record(builder.summary, adds_to)


def _telemetry(report: Callable[[str], None]) -> Telemetry:
    from ultimate_embedder.report import open_telemetry  # most runs have none

    return open_telemetry(report)


def _record(summary: RunSummary, adds_to: RunSummary | None) -> RunSummary:
    return summary if adds_to is None else add_exports(adds_to, summary)


def _remove_new_output(output: Output, existed: bool) -> None:
    """Remove what a rejected run wrote into a folder that was not an output before."""
    with contextlib.suppress(OSError):  # a file that cannot be removed does no harm
        for path in (output.events_path, output.lock_path):
            path.unlink(missing_ok=True)
        if not existed:
            output.folder.rmdir()


def _describe_error(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, UltimateEmbedderError) else f"{type(error).__name__}: {error}"
