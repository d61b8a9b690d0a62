"""Compare two outputs: what their runs did, and how far their vectors agree."""

from __future__ import annotations

from dataclasses import replace

from ultimate_embedder.config import CompareConfig
from ultimate_embedder.errors import UltimateEmbedderError, UsageError
from ultimate_embedder.find import compare_sides, open_side
from ultimate_embedder.output import Output, open_output
from ultimate_embedder.report.compare import runs
from ultimate_embedder.report.compare.result import CollectionComparison, Comparison, RunSide
from ultimate_embedder.report.replay import replayed_summary
from ultimate_embedder.summary import CollectionSummary, RunSummary

MOST_SAMPLE = 20_000


def compare_outputs(config: CompareConfig) -> Comparison:
    """Compare two outputs. Raises `UsageError` if one is no output, or if they have no such collection."""
    if config.sample > MOST_SAMPLE:
        raise UsageError(f"--sample {config.sample:,}: at most {MOST_SAMPLE:,} texts.")
    outputs = open_output(config.a), open_output(config.b)
    (run_a, side_a, notes_a), (run_b, side_b, notes_b) = (_run(output) for output in outputs)
    pairs = _pairs(outputs[0], outputs[1], config.collection)
    found = tuple(_collection(outputs, names, (run_a, run_b), config) for names in pairs)
    notes = [*notes_a, *notes_b]
    if config.a.resolve() == config.b.resolve():
        notes.insert(0, "A and B are the same folder: everything is compared with itself.")
    return Comparison(
        a=side_a,
        b=side_b,
        options=runs.option_differences(run_a, run_b),
        environment=runs.environment_differences(run_a, run_b),
        collections=found,
        only_a=() if config.collection else _alone(outputs[0], [a for a, _ in pairs]),
        only_b=() if config.collection else _alone(outputs[1], [b for _, b in pairs]),
        notes=tuple(notes),
    )


def _run(output: Output) -> tuple[RunSummary | None, RunSide, list[str]]:
    """The summary of the last run; made from events where the run was killed before it wrote one."""
    summary, problem = output.try_summary()
    notes = [problem] if problem else []
    if summary is not None:
        state = "complete" if summary.ok else "not complete"
        return summary, RunSide(str(output.folder), state, summary.started_at, summary.seconds), notes
    replayed = None
    if not problem:
        try:
            replayed = replayed_summary(output.events_path)
        except OSError as error:
            notes.append(f"{output.events_path} cannot be read: {error.strerror}.")
    if replayed is None:
        notes.append(f"{output.folder} has no summary and no events: nothing is known of its run, only its vectors.")
        return None, RunSide(str(output.folder), "not known", "", None), notes
    notes.append(f"{output.folder}: its last run did not end, or still runs; figures are from its events.")
    return replayed, RunSide(str(output.folder), "not ended", replayed.started_at, replayed.seconds), notes


def _pairs(a: Output, b: Output, only: str | None) -> list[tuple[str, str]]:
    """Collections of the same name; the only one of each, whatever their names are."""
    if only is not None:
        return [(a[only].name, b[only].name)]
    names = [name for name in a.collections if name in b.collections]
    if not names and len(a.collections) == len(b.collections) == 1:
        return [(a.collections[0], b.collections[0])]
    if not names:
        known = [", ".join(each.collections) or "none" for each in (a, b)]
        raise UsageError(
            f"{a.folder} and {b.folder} have no collection in common: {known[0]} and {known[1]}. "
            "Embed the same chunks into both, or use --name to give a collection the same name."
        )
    return [(name, name) for name in names]


def _alone(output: Output, compared: list[str]) -> tuple[str, ...]:
    return tuple(name for name in output.collections if name not in compared)


def _collection(
    outputs: tuple[Output, Output],
    names: tuple[str, str],
    found: tuple[RunSummary | None, RunSummary | None],
    config: CompareConfig,
) -> CollectionComparison:
    entries = [_entry(run, name) for run, name in zip(found, names, strict=True)]
    result = CollectionComparison(*names)
    if entries[0] is not None and entries[1] is not None:
        a, b = entries[0], entries[1]
        result = replace(
            result,
            counts=runs.counts(a, b),
            timings=runs.timings(a, b),
            models=runs.model_differences(a, b),
            passes=runs.passes(a, b),
            mitigations=runs.mitigations(a, b),
        )
    try:
        sides = [open_side(output[name], run) for output, name, run in zip(outputs, names, found, strict=True)]
        texts, vectors = compare_sides(*sides, sample=config.sample, neighbours=config.neighbours, seed=config.seed)
    except (UltimateEmbedderError, OSError) as error:
        return replace(result, problem=str(error))
    notes = tuple(note for side in sides for note in side.notes)
    problem = None
    if not texts.common:
        problem = f"no text is in both: {texts.a:,} texts in A, {texts.b:,} in B. Compare outputs of the same chunks."
    return replace(result, texts=texts, vectors=tuple(vectors), notes=notes, problem=problem)


def _entry(run: RunSummary | None, name: str) -> CollectionSummary | None:
    return next((each for each in run.collections if each.collection == name), None) if run else None
