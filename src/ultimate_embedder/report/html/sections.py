"""The tables of the page. Every number is one of the summary, and carries its place there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping

from ultimate_embedder.report.html.advice import Advice
from ultimate_embedder.report.html.words import duration, folded, marked, number, pairs, share, size, table, text
from ultimate_embedder.report.live.sentences import devices_in_words
from ultimate_embedder.report.rejections import reason_key
from ultimate_embedder.summary import CollectionSummary, ModelSummary, PassSummary, RunSummary

LONG = 4_000  # characters of an error, or of a command
MOST_ROWS = 100  # of a table; summary.json has the rest
LEVELS = {"problem": ("✕", "Problem"), "look": ("!", "Look"), "note": ("i", "Note")}
NOT_ENDED = "–"  # not measured before the end
TRUNCATION = {
    "truncated": "chunks truncated",
    "truncated_texts": "texts truncated",
    "pooled": "chunks pooled",
    "longest_tokens": "longest",
    "tokens_lost": "tokens lost",
}
MOST_POSITIONS = 6
REVISIONS = {"package": "version", "folder": "begin of the sha256"}  # of other sources it is the commit of the hub


def attention(found: list[Advice]) -> str:
    """What needs attention: symptom, evidence, one change."""
    if not found:
        return "<p>Nothing.</p>"
    items = ""
    for each in found:
        sign, word = LEVELS[each.level]
        change = f'<p class="change">{text(each.change)}</p>' if each.change else ""
        items += (
            f'<li class="{each.level}"><span class="tag"><b aria-hidden="true">{sign}</b>{word}</span>'
            f"<div><p><b>{text(each.symptom)}.</b> {text(each.evidence, LONG)}</p>{change}</div></li>"
        )
    return f'<ul class="items">{items}</ul>'


def collections(summary: RunSummary) -> str:
    """What became of each collection."""
    rows = []
    for index, each in enumerate(summary.collections[:MOST_ROWS]):
        keys = ("found", "embedded", "newly_encoded", "rejected", "truncated")
        counts = [number(getattr(each.chunks, key), f"collections.{index}.chunks.{key}") for key in keys]
        name = f"{text(each.collection)}<small>{text(each.target_qdrant_collection or '')}</small>"
        status = marked((each.status or "not finished").replace("_", " "), each.status, f"collections.{index}.status")
        seconds = number(each.seconds, f"collections.{index}.seconds", 1) if each.status else NOT_ENDED
        rows.append([name, status, *counts, seconds])
    headings = ["collection", "status", "#found", "#embedded", "#new", "#rejected", "#truncated", "#seconds"]
    return table(headings, rows) + _more(len(summary.collections)) if rows else ""


def _more(count: int) -> str:
    return f"<p>And {count - MOST_ROWS:,} more; summary.json lists all.</p>" if count > MOST_ROWS else ""


def truncation(summary: RunSummary) -> str:
    """What was lost at token limits, and where most."""
    found = [each for each in _passes(summary) if each[2].truncated or each[2].pooled]
    if not found:
        return ""
    columns = {key: heading for key, heading in TRUNCATION.items() if any(getattr(one, key) for _, _, one in found)}
    rows = []
    for place, collection, one in found[:MOST_ROWS]:
        limit = next((each.max_tokens for each in collection.models if each.model == one.model), None)
        rows.append(
            [
                f"{text(one.model)}<small>{text(collection.collection)}</small>",
                f"{limit:,}" if limit else "",
                *(number(getattr(one, key), f"{place}.{key}") for key in columns),
                marked(share(one.lost_share), one.lost_share, f"{place}.lost_share"),
            ]
        )
    headings = ["model", "#limit", *(f"#{heading}" for heading in columns.values()), "#of their tokens"]
    return table(headings, rows) + _more(len(found)) + folded("Chunks that lost most", _lost_most(summary))


def _lost_most(summary: RunSummary) -> str:
    rows = []
    for place, _, one in _passes(summary):
        for index, each in enumerate(one.lost_most):
            at = f"{place}.lost_most.{index}"
            where = f"{text(each.file)}<small>record {number(each.position, f'{at}.position')}</small>"
            counts = [number(getattr(each, key), f"{at}.{key}") for key in ("tokens", "tokens_lost")]
            rows.append([where, text(each.chunk_id), text(one.model), *counts])
    headings = ["file", "chunk", "model", "#tokens", "#lost"]
    return table(headings, rows[:MOST_ROWS]) + _more(len(rows)) if rows else ""


def rejected(summary: RunSummary) -> str:
    """Rejected records by reason, the most frequent first."""
    groups = [
        (group, f"collections.{index}.rejected_by_reason.{place}", each.collection)
        for index, each in enumerate(summary.collections)
        for place, group in enumerate(each.rejected_by_reason)
    ]
    groups.sort(key=lambda each: -each[0].records)
    rows, positions = [], _positions(summary)
    for group, key, collection in groups[:MOST_ROWS]:
        reason = f"{text(group.reason)}<small>{text(group.advice)}</small>"
        at = "" if group.position is None else number(group.position, f"{key}.position")
        more = positions.get((collection, group.file, reason_key(group.reason)), [])[1:]
        rest = "".join(f", {position:,}" for position in more[:MOST_POSITIONS]) + (
            " …" if more[MOST_POSITIONS:] else ""
        )
        rows.append(
            [
                reason,
                f"{text(group.file)}<small>{text(collection)}</small>",
                f"{at}{rest}",
                number(group.records, f"{key}.records"),
            ]
        )
    return table(["reason", "first file", "records there", "#records"], rows) + _more(len(groups)) if rows else ""


def _positions(summary: RunSummary) -> dict[tuple[str, str, str], list[int]]:
    """Where the listed records are, by collection, file and reason; a few of each."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for each in summary.collections:
        for record in each.rejected:
            key = (each.collection, record.file, reason_key(record.reason.partition(". ")[0]))
            places = found.setdefault(key, [])
            if record.position is not None and len(places) < MOST_POSITIONS + 2:
                places.append(record.position)
    return found


def models(summary: RunSummary) -> str:
    """The models with commits and sources, and what each did in each collection."""
    found: dict[str, tuple[ModelSummary, str]] = {}
    for index, collection in enumerate(summary.collections):
        for at, model in enumerate(collection.models):
            found.setdefault(model.model, (model, f"collections.{index}.models.{at}"))
    cards = "".join(_model(model, key) for model, key in list(found.values())[:MOST_ROWS])
    rows = []
    for place, collection, one in _passes(summary):
        rows.append(
            [
                f"{text(one.model)}<small>{text(collection.collection)}</small>",
                f"{text(_computed_in(one))}<small>{text(devices_in_words(one.devices))}</small>",
                *(number(getattr(one, key), f"{place}.{key}") for key in ("encoded_texts", "batches", "tokens")),
                number(one.tokens_per_second, f"{place}.tokens_per_second") if one.seconds else NOT_ENDED,
                marked(share(one.padding_ratio - 1), one.padding_ratio, f"{place}.padding_ratio")
                if one.seconds
                else NOT_ENDED,
                marked(size(one.peak_reserved_bytes), one.peak_reserved_bytes, f"{place}.peak_reserved_bytes"),
                number(one.seconds, f"{place}.seconds", 1) if one.seconds else NOT_ENDED,
            ]
        )
    headings = ["pass", "computed in", "#texts", "#batches", "#tokens", "#tokens/s", "#padding", "#peak", "#seconds"]
    passes = table(headings, rows[:MOST_ROWS]) + _more(len(rows)) if rows else ""
    return f'<div class="pair">{cards}</div>{passes}' if cards else ""


def _computed_in(one: PassSummary) -> str:
    """The number format, how its products are computed, and why."""
    way = f", {one.quantization}" if one.quantization else ""
    return f"{one.dtype}{way}" + (f" by --min-cosine {one.choice.min_cosine:g}" if one.choice else "")


def _model(model: ModelSummary, key: str) -> str:
    facts = [
        ("vectors", "sparse" if model.kind == "sparse" else ""),
        ("dimensions", number(model.dim, f"{key}.dim") if model.dim else ""),
        ("token limit", number(model.max_tokens, f"{key}.max_tokens") if model.max_tokens else ""),
        ("precision", text(model.dtype or "")),
        (REVISIONS.get(model.source, "commit"), f"<code>{text(model.revision)}</code>"),
        ("source", text(f"{model.source}: {model.hub_id}" if model.hub_id else model.source)),
        ("sha256 of its files", f"<code>{text(model.digest[:16])}</code>"),
        ("size", marked(size(model.size_bytes), model.size_bytes, f"{key}.size_bytes") if model.size_bytes else ""),
        ("note", text(model.note)),
    ]
    return f"<div><h3>{text(model.model)}</h3>{pairs([each for each in facts if each[1]])}</div>"


def sparse(summary: RunSummary) -> str:
    """The sparse vectors of each collection."""
    rows = []
    for index, collection in enumerate(summary.collections):
        for place, each in enumerate(collection.sparse):
            key = f"collections.{index}.sparse.{place}"
            words = each.bm25.language or each.bm25.tokenizer if each.bm25 else ""
            rows.append(
                [
                    f"{text(each.name)}<small>{text(collection.collection)}</small>",
                    f"{text(each.method)}<small>{text(words)}</small>",
                    number(each.values_per_point, f"{key}.values_per_point", 1),
                    number(each.empty, f"{key}.empty"),
                    number(each.avg_len, f"{key}.avg_len", 1) if each.avg_len is not None else "",
                ]
            )
    headings = ["vector", "made by", "#values of a point", "#points without any", "#mean words"]
    return table(headings, rows[:MOST_ROWS]) + _more(len(rows)) if rows else ""


def _passes(summary: RunSummary) -> Iterator[tuple[str, CollectionSummary, PassSummary]]:
    for index, collection in enumerate(summary.collections):
        for place, one in enumerate(collection.passes):
            yield f"collections.{index}.passes.{place}", collection, one


def slowest(summary: RunSummary, start: float | None) -> str:
    """The batches with the longest forward; when they began is told from the start of the run, if that is known."""
    rows = []
    for index, each in enumerate(summary.slowest_batches):
        key = f"slowest_batches.{index}"
        index_of = number(each.batch_index, f"{key}.batch_index")
        rows.append(
            [
                number(each.seconds, f"{key}.seconds", 2),
                f"{text(each.model)}<small>{text(each.collection)}, batch {index_of}</small>",
                text(each.device),
                *(number(getattr(each, name), f"{key}.{name}") for name in ("rows", "longest", "tokens")),
                f"{max(0.0, each.began - start):.1f}" if start else NOT_ENDED,
            ]
        )
    return table(["#seconds", "model", "device", "#rows", "#longest", "#tokens", "#began, s"], rows) if rows else ""


def exports(summary: RunSummary) -> str:
    """What is on disk."""
    rows = []
    for index, collection in enumerate(summary.collections):
        for place, each in enumerate(collection.exports):
            key = f"collections.{index}.exports.{place}"
            rows.append(
                [
                    text(each.kind),
                    text(each.path),
                    number(each.rows, f"{key}.rows"),
                    marked(size(each.size_bytes), each.size_bytes, f"{key}.size_bytes"),
                    f"<code>{text(each.sha256[:12])}</code>",
                ]
            )
    headings = ["kind", "path", "#rows", "#size", "sha256"]
    return table(headings, rows[:MOST_ROWS]) + _more(len(rows)) if rows else ""


def how(summary: RunSummary) -> str:
    """The command as typed, if it is known, and all options, versions and the machine."""
    command = shlex.join(["ultimate-embedder", *summary.command]) if summary.command else ""
    typed = f'<pre class="command">{text(command, LONG)}</pre>' if command else ""
    typed += f"<p><small>in {text(summary.working_directory)}</small></p>" if summary.working_directory else ""
    options = summary.options.model_dump(mode="json") if summary.options else {}
    return (
        typed
        + folded("All options", _settings(options))
        + folded("Versions and machine", _settings({**summary.versions, **summary.machine}))
    )


def _settings(values: Mapping[str, object]) -> str:
    rows = [
        [f"<code>{text(name)}</code>", f"<code>{text(json.dumps(value, ensure_ascii=False))}</code>"]
        for name, value in values.items()
    ]
    return table(["name", "value"], rows) if rows else ""


def figures(summary: RunSummary) -> str:
    """The figures of the run as a whole."""
    keys = (
        ("chunks found", "found"),
        ("embedded", "embedded"),
        ("newly encoded", "newly_encoded"),
        ("rejected", "rejected"),
    )
    totals = [(name, _total(summary, key)) for name, key in keys]
    truncated = ("truncated", _total(summary, "truncated"))
    time = ("time", marked(duration(summary.seconds), summary.seconds, "seconds"))
    return pairs([*totals, truncated, time, *_pace(summary)], "top")


def _pace(summary: RunSummary) -> list[tuple[str, str]]:
    """Texts per second: of the only pass, or of all together while they encoded."""
    encoded = sum(each.chunks.newly_encoded for each in summary.collections)
    seconds = sum(each.seconds_by_stage.get("encode", 0.0) for each in summary.collections)
    return [("texts/s, encoding", f"{encoded / seconds:,.1f}")] if encoded and seconds else []


def _total(summary: RunSummary, key: str) -> str:
    return number(sum(getattr(each.chunks, key) for each in summary.collections), f"collections.*.chunks.{key}")
