"""An evaluation, step by step: queries and judgements, rankings and measures, rows, verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from ultimate_embedder._version import __version__
from ultimate_embedder.events import Emit, Warned
from ultimate_embedder.find.evaluate.against import about_other, compare_outputs
from ultimate_embedder.find.evaluate.collection import Judged, Searched, choose_collection, search_collection
from ultimate_embedder.find.evaluate.documents import open_points
from ultimate_embedder.find.evaluate.headings import make_queries, save_queries
from ultimate_embedder.find.evaluate.judgements import read_judgements
from ultimate_embedder.find.evaluate.measures import require_ir_measures
from ultimate_embedder.find.evaluate.options import EvaluateConfig
from ultimate_embedder.find.evaluate.queries import read_queries
from ultimate_embedder.find.evaluate.result import Evaluation, Matched, Statement, Tuned, keep_evaluation
from ultimate_embedder.find.evaluate.sources import journal_identity
from ultimate_embedder.find.evaluate.table import best_model, make_rows
from ultimate_embedder.find.evaluate.tuning import about_tuning, tune_weights
from ultimate_embedder.find.evaluate.verdict import make_verdict
from ultimate_embedder.find.same_model import typed_words
from ultimate_embedder.output import CollectionOutput, open_output

MADE = "titles and headings"


def evaluate_output(config: EvaluateConfig, emit: Emit) -> Evaluation:
    """Evaluate a collection in every way, and keep the result in its output if that can be written to."""
    started = time.perf_counter()
    require_ir_measures()
    output = open_output(config.folder)
    collection = choose_collection(output, config.collection)
    judged = _read_judged(config, collection)
    here = search_collection(output, collection, judged, config, emit)
    found = _summarise(here, judged, config)
    if config.tune and len(here.plan.tuned) > 1:
        found = _with(found, tuned=_tuned(here, config))
    if config.against is not None:
        there = open_output(config.against)
        same = config.against_collection or (collection.name if collection.name in there.collections else None)
        other = search_collection(there, choose_collection(there, same), judged, config, emit)
        found = _with(found, against=compare_outputs(here, other, config.seed))
    found = _with(found, seconds=time.perf_counter() - started)
    if problem := keep_evaluation(output, found):
        emit(Warned(collection=collection.name, message=f"the evaluation is not kept for the report: {problem}"))
    return found


def _read_judged(config: EvaluateConfig, collection: CollectionOutput) -> Judged:
    if config.make_queries is None:
        assert config.queries is not None
        assert config.qrels is not None
        return Judged(read_queries(config.queries), read_judgements(config.qrels, config.least_grade))
    made = make_queries(open_points(collection), config.make_queries, config.seed)
    if config.save_queries is not None:
        save_queries(config.save_queries, made.queries, made.judgements)
    return Judged(made.queries, made.judgements, made.notes)


def _summarise(here: Searched, judged: Judged, config: EvaluateConfig) -> Evaluation:
    values, ways = here.measured.values, here.measured.ways
    best = best_model(ways, values)
    rows = make_rows(ways, values, config.seed, baseline=best or here.default)
    return Evaluation(
        collection=here.collection.name,
        output=str(here.output.folder),
        evaluated_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        program_version=__version__,
        points=journal_identity(here.collection),
        chunks=here.task.documents.chunks,
        documents=here.task.documents.count,
        doc_field=config.doc_field,
        queries=_named(config.queries),
        qrels=_named(config.qrels),
        made=config.make_queries is not None,
        seed=config.seed,
        candidates=config.candidates,
        matched=Matched.model_validate(asdict(here.task.matching)),
        rows=rows,
        best_model=best,
        default=here.default,
        verdict=make_verdict(
            rows,
            values,
            here.default,
            config.seed,
            typed=typed_words(here.output.try_summary()[0]),
            about_words=config.make_queries is None,
        ),
        notes=[*judged.notes, *here.notes],
    )


def _tuned(here: Searched, config: EvaluateConfig) -> Tuned:
    return tune_weights(here.task, here.measured.kept, here.plan, config.split, config.seed)


def _with(found: Evaluation, **changes: object) -> Evaluation:
    """The evaluation with more in it, and a statement about it."""
    added: list[Statement] = []
    changed = found.model_copy(update=changes)
    if "tuned" in changes and changed.tuned is not None:
        added.append(about_tuning(changed.tuned))
    if "against" in changes and changed.against is not None:
        added.append(about_other(changed.against))
    return changed.model_copy(update={"verdict": [*found.verdict, *added]})


def _named(source: Path | Mapping[str, object] | None) -> str:
    if source is None:
        return MADE
    return str(source) if isinstance(source, Path) else "Python"
