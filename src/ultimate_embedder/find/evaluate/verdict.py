"""What the figures say, in words: what to take, whether an ensemble beats its best model, what to drop."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ultimate_embedder.find.evaluate.measure import Values, deciding
from ultimate_embedder.find.evaluate.result import Compared, EvaluationRow, Statement
from ultimate_embedder.find.evaluate.statistics import compare
from ultimate_embedder.find.evaluate.ways import HYBRID
from ultimate_embedder.find.options import DEFAULT_FUSION

DENSE = ("model", "fusion", "vector_fusion")
CHOICES = (*DENSE, "sparse", "hybrid", "reranked")
FUSED = ("fusion", "vector_fusion")
WITHOUT = " without "


def make_verdict(
    rows: Sequence[EvaluationRow],
    values: Values,
    default: str,
    seed: int,
    *,
    typed: Mapping[str, str] | None = None,
    about_words: bool = True,
) -> list[Statement]:
    """All statements about one collection, what to do first.

    `typed` is what embed is given for models and sparse vectors, where that is not their name. Without `about_words`
    sparse vectors are not judged: queries made of headings are the very words of the chunks.
    """
    typed = typed or {}
    models = [row for row in rows if row.kind == "model"]
    best = max(models, key=lambda row: row.ndcg, default=None)
    found = []
    if best is not None and len(models) > 1:
        found += [_about_model(best, models), *_about_ensemble(best, rows, default)]
        found += list(_about_dropping(rows, models, values, seed, typed))
    found += [*(_about_sparse(rows, models, values, seed) if about_words else ()), *_about_reranker(rows, default)]
    choices = [row for row in rows if row.kind in (CHOICES if about_words else DENSE)]
    return [*_advice(choices, best, typed), *found]


def _about_model(best: EvaluationRow, models: Sequence[EvaluationRow]) -> Statement:
    told = [f"{row.name} {row.ndcg:.3f}{row.evidence}" for row in models if row is not best]
    return Statement(about="model", words=f"{best.name} is the best: nDCG@10 {best.ndcg:.3f}; {'; '.join(told)}")


def _about_ensemble(best: EvaluationRow, rows: Sequence[EvaluationRow], default: str) -> Iterator[Statement]:
    fused = [row for row in rows if row.kind in FUSED and WITHOUT not in row.name and row.compared]
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
    rows: Sequence[EvaluationRow],
    models: Sequence[EvaluationRow],
    values: Values,
    seed: int,
    typed: Mapping[str, str],
) -> Iterator[Statement]:
    """Which model the ensemble would miss least, and whether it would miss it."""
    ensembles = [name for name in (DEFAULT_FUSION, f"{HYBRID}{DEFAULT_FUSION}") if name in values]
    if not ensembles:
        return
    whole = max(ensembles, key=lambda name: float(deciding(values[name]).mean()))
    names = [row.name for row in models]
    rest = {name: _without(name, names, whole) for name in names}
    known = {name: other for name, other in rest.items() if other in values}
    if not known:
        return
    found = {name: _difference(values, other, whole, seed) for name, other in known.items()}
    least = max(found, key=lambda name: found[name].difference)
    lost = found[least]
    before, after = (float(deciding(values[name]).mean()) for name in (whole, known[least]))
    figures = f"nDCG@10 {after:.3f} without it, {before:.3f} with it{lost.evidence}"
    if lost.significant and lost.difference < 0:
        yield Statement(about="drop", words=f"drop no model; {least} would be missed least: {figures}")
        return
    saved = f"vectors of {len(names) - 1} instead of {len(names)} models"
    reason = "is better without it" if lost.significant else "does not lose more than chance explains"
    used = next((row.models for row in rows if row.name == known[least]), ())
    command = _embed([name for name in names if name != least], [name for name in used if name not in names], typed)
    words = f"{least} can be dropped, {whole} {reason}: {figures}; {saved}"
    yield Statement(about="drop", words=words, command=command)


def _without(name: str, names: Sequence[str], whole: str) -> str:
    """The way that is left if the ensemble loses a model."""
    rest = [each for each in names if each != name]
    return rest[0] if len(rest) == 1 and not whole.startswith(HYBRID) else f"{whole}{WITHOUT}{name}"


def _about_sparse(
    rows: Sequence[EvaluationRow], models: Sequence[EvaluationRow], values: Values, seed: int
) -> Iterator[Statement]:
    """Whether sparse vectors help beside the dense ones."""
    dense = DEFAULT_FUSION if DEFAULT_FUSION in values else models[0].name if len(models) == 1 else None
    hybrid = f"{HYBRID}{DEFAULT_FUSION}"
    names = [row.name for row in rows if row.kind == "sparse"]
    if dense is None or hybrid not in values or not names:
        return
    change = _difference(values, hybrid, dense, seed)
    before, after = (float(deciding(values[name]).mean()) for name in (dense, hybrid))
    if not change.significant:
        words = "makes no difference that chance does not explain"
    else:
        words = "helps" if change.difference > 0 else "hurts"
    figures = f"{hybrid} {after:.3f}, {dense} {before:.3f}{change.evidence}"
    command = "search --using fused" if change.significant and change.difference < 0 else ""
    yield Statement(about="sparse", words=f"{' and '.join(names)} {words}: {figures}", command=command)


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
            versus = f", to {row.compared.to}{row.evidence}" if row.compared else ""
            yield Statement(about="reranker", words=f"{told}{versus}")


def _advice(
    choices: Sequence[EvaluationRow], best: EvaluationRow | None, typed: Mapping[str, str]
) -> Iterator[Statement]:
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
    yield Statement(about="advice", words=words, command=_command(chosen, typed))


def _embed(models: Sequence[str], sparse: Sequence[str], typed: Mapping[str, str]) -> str:
    """The options of embed that make vectors of these models, and these sparse vectors."""
    words = ["embed"]
    for option, names in (("--models", models), ("--sparse", sparse)):
        if names:
            words += [option, shlex.quote(",".join(typed.get(name, name) for name in names))]
    return " ".join(words)


def _command(row: EvaluationRow, typed: Mapping[str, str]) -> str:
    """The options that make and search such vectors."""
    method = next((word for word in row.name.split() if word + " " != HYBRID), "")
    if row.kind == "model":
        return f"{_embed([row.name], [], typed)}, or search --using {row.name}"
    if row.kind == "vector_fusion":
        return f"{_embed(row.models, [], typed)} --fusion {row.name}"
    if row.kind == "reranked":
        return f"search --rerank {row.models[-1]}"
    using = {"fusion": "fused", "sparse": "sparse"}.get(row.kind, "hybrid")
    using = ",".join(row.models) if WITHOUT in row.name else using
    made = "embed --fusion named, " if row.kind == "fusion" else ""
    return f"{made}search --using {using}" + (f" --fusion {method}" if row.kind != "sparse" else "")


def _difference(values: Values, name: str, to: str, seed: int) -> Compared:
    """One comparison, which needs no correction."""
    (found,) = compare(deciding(values[name])[:, None], np.asarray(deciding(values[to])), seed)
    return Compared.of(to, found)
