"""What the figures say, in words: the best model, whether an ensemble beats it, what to drop, what to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ultimate_embedder.find.evaluate.measure import Values, deciding
from ultimate_embedder.find.evaluate.result import Compared, EvaluationRow, Statement
from ultimate_embedder.find.evaluate.statistics import compare
from ultimate_embedder.find.evaluate.ways import DEFAULT_SCORE_FUSION, Way

CHOICES = ("model", "fusion", "vector_fusion", "sparse", "hybrid", "reranked")
FUSED = ("fusion", "vector_fusion")
NO_CHANGE = 5e-4  # what three digits do not show


def make_verdict(
    ways: Sequence[Way], rows: Sequence[EvaluationRow], values: Values, default: str, seed: int
) -> list[Statement]:
    """All statements about one collection."""
    models = [row for row in rows if row.kind == "model"]
    best = max(models, key=lambda row: row.ndcg, default=None)
    found = []
    if best is not None and len(models) > 1:
        found += [_about_model(best, models), *_about_ensemble(best, rows, default)]
        found += list(_about_dropping(ways, models, values, seed))
    return [*_advice(rows, best), *found, *_about_reranker(rows, default)]


def _about_model(best: EvaluationRow, models: Sequence[EvaluationRow]) -> Statement:
    others = [row for row in models if row is not best]
    told = [f"{row.name} {row.ndcg:.3f}{row.evidence}" for row in others]
    return Statement(about="model", words=f"{best.name} is the best: nDCG@10 {best.ndcg:.3f}; {'; '.join(told)}")


def _about_ensemble(best: EvaluationRow, rows: Sequence[EvaluationRow], default: str) -> Iterator[Statement]:
    fused = [row for row in rows if row.kind in FUSED and " without " not in row.name and row.compared]
    if not fused:
        return
    top = max(fused, key=lambda row: row.ndcg)
    figures = f"{top.name} {top.ndcg:.3f} against {best.ndcg:.3f}{top.evidence}"
    if top.compared and top.compared.significant:
        beats = top.compared.difference > 0
        words = "the ensemble beats its best model" if beats else "every fusion is worse than the best model"
    else:
        words = "no fusion beats the best model by more than chance explains; the best of them"
    yield Statement(about="ensemble", words=f"{words}: {figures}")
    for row in fused:
        if row.name == default and row.compared and row.compared.significant and row.compared.difference < 0:
            told = f"{row.name}, which this output is searched by, is worse than {best.name} alone"
            yield Statement(about="output", words=f"{told}: {row.ndcg:.3f}{row.evidence}")


def _about_dropping(
    ways: Sequence[Way], models: Sequence[EvaluationRow], values: Values, seed: int
) -> Iterator[Statement]:
    """Which model the ensemble would miss least, and whether it would miss it."""
    names = [row.name for row in models]
    without = {name: _without(name, names, ways) for name in names}
    known = {name: rest for name, rest in without.items() if rest is not None and rest in values}
    if DEFAULT_SCORE_FUSION not in values or not known:
        return
    whole = deciding(values[DEFAULT_SCORE_FUSION])
    rest = np.stack([deciding(values[each]) for each in known.values()], axis=1)
    compared = zip(known, compare(rest, whole, seed), strict=True)
    found = {name: Compared.of(DEFAULT_SCORE_FUSION, each) for name, each in compared}
    least = max(found, key=lambda name: found[name].difference)
    lost = found[least]
    after = float(deciding(values[known[least]]).mean())
    figures = f"nDCG@10 {after:.3f} without it, {whole.mean():.3f} with it{lost.evidence}"
    if lost.significant and lost.difference < 0:
        yield Statement(about="drop", words=f"drop no model; {least} would be missed least: {figures}")
        return
    saved = f"vectors of {len(names) - 1} instead of {len(names)} models"
    reason = "is better without it" if lost.difference > NO_CHANGE else "does not lose more than chance explains"
    command = f"embed --models {','.join(name for name in names if name != least)}"
    yield Statement(
        about="drop",
        words=f"{least} can be dropped, {DEFAULT_SCORE_FUSION} {reason}: {figures}; {saved}",
        command=command,
    )


def _without(name: str, names: Sequence[str], ways: Sequence[Way]) -> str | None:
    """The way that is the default fusion without a model."""
    rest = [each for each in names if each != name]
    if len(rest) == 1:
        return rest[0]
    wanted = f"{DEFAULT_SCORE_FUSION} without {name}"
    return next((way.name for way in ways if way.name == wanted), None)


def _about_reranker(rows: Sequence[EvaluationRow], default: str) -> Iterator[Statement]:
    base = next((row for row in rows if row.name == default), None)
    top = next((row for row in rows if row.kind == "ceiling" and row.name.startswith(f"{default}, best ")), None)
    if base is None or top is None:
        return
    depth = top.name.removeprefix(f"{default}, ").removesuffix(" in perfect order")
    words = (
        f"a reranker of the {depth} of {default} could reach nDCG@10 {top.ndcg:.3f} at most, "
        f"{top.ndcg - base.ndcg:+.3f}; what they do not contain it cannot find (recall@100 {base.recall:.3f})"
    )
    yield Statement(about="reranker", words=words)
    for row in rows:
        if row.kind == "reranked":
            told = f"{row.name}: nDCG@10 {row.ndcg:.3f}, {row.ndcg - base.ndcg:+.3f} to {default}"
            yield Statement(about="reranker", words=f"{told}{row.evidence}")


def _advice(rows: Sequence[EvaluationRow], best: EvaluationRow | None) -> Iterator[Statement]:
    choices = [row for row in rows if row.kind in CHOICES]
    top = max(choices, key=lambda row: row.ndcg, default=None)
    if top is None or len(choices) < 2:
        return
    if best is None or top is best:
        words, chosen = f"take {top.name}: nothing was better", top
    elif top.compared and top.compared.significant:
        words, chosen = f"take {top.name}: it beats {best.name} by more than chance explains", top
    else:
        words = f"take {best.name} alone: {top.name} is ahead ({top.ndcg:.3f}), but not by more than chance explains"
        chosen = best
    yield Statement(about="advice", words=words, command=_command(chosen))


def _command(row: EvaluationRow) -> str:
    """The options that make and search such vectors."""
    dense = ",".join(row.models)
    if row.kind == "model":
        return f"embed --models {dense}, or search --using {row.name}"
    if row.kind == "vector_fusion":
        return f"embed --models {dense} --fusion {row.name}"
    if row.kind == "fusion":
        return f"embed --models {dense} --fusion named; search --fusion {row.name.split()[0]}"
    if row.kind == "hybrid":
        return f"search --using hybrid --fusion {row.name.split()[1]}"
    if row.kind == "sparse":
        return "search --using sparse"
    return f"search --rerank {row.models[-1]}"
