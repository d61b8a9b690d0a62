"""One self-contained HTML page about a run: verdict first, then what needs attention, then everything else."""

from __future__ import annotations

from collections.abc import Iterable

from ultimate_embedder.events import EVENTS_VERSION
from ultimate_embedder.output import EVENTS_NAME, SUMMARY_NAME
from ultimate_embedder.report.html import sections
from ultimate_embedder.report.html.advice import find_advice
from ultimate_embedder.report.html.charts import draw_batches, draw_throughput
from ultimate_embedder.report.html.curves import Curves
from ultimate_embedder.report.html.frame import frame
from ultimate_embedder.report.html.lengths import draw_lengths
from ultimate_embedder.report.html.nodes import draw_nodes
from ultimate_embedder.report.html.plan import draw_plan
from ultimate_embedder.report.html.stages import draw_stages
from ultimate_embedder.report.html.timeline import draw_timeline
from ultimate_embedder.report.html.words import duration, share, text
from ultimate_embedder.summary import RunSummary
from ultimate_embedder.terminal import counted
from ultimate_embedder.types import is_cpu

HUES = 4  # that can be told apart; each has a name beside it
SIGNS = {"completed": "✓", "partial": "…", "failed": "✕"}
OVER = "memory exceeded a ceiling"


def make_page(
    summary: RunSummary,
    events: Curves | None,
    *,
    ended: bool = True,
    evaluations: Iterable[tuple[str, str, str]] = (),
) -> str:
    """The page of a run; without `events` it has no curves, and says so. `evaluations` are sections of their own."""
    hues = hues_of(one.model for each in summary.collections for one in each.passes)
    parts = (
        (
            "What needs attention",
            "Symptom, evidence, one change.",
            sections.attention(find_advice(summary, ended=ended)),
        ),
        ("Collections", "New: texts that this run encoded.", sections.collections(summary)),
        *evaluations,
        (
            "Nodes",
            "The machines of the cluster; a process that was lost was started again if its machine was there.",
            draw_nodes(summary, events.start if events else None),
        ),
        (
            "Timeline",
            "The host, then each device with its memory. Marks below are mitigations.",
            draw_timeline(summary, events, hues),
        ),
        ("Throughput", "Tokens per second of each model.", draw_throughput(events, hues) if events else ""),
        (
            "Batch sizes",
            "Rows: a line from the smallest to the largest batch of a moment, a dot at the mean.",
            draw_batches(events, hues) if events else "",
        ),
        (
            "Lengths",
            "Texts by their tokens; hatched, behind the dashed line: beyond the limit of the model.",
            draw_lengths(summary, hues),
        ),
        (
            "Truncation",
            "Several chunks may have the same text, which is encoded once.",
            sections.truncation(summary),
        ),
        ("Rejected records", "By reason, with the first of each; records count from 0.", sections.rejected(summary)),
        ("Models", "What made the vectors, and each pass.", sections.models(summary)),
        ("Sparse vectors", "Beside the dense ones, for searches by words.", sections.sparse(summary)),
        ("Plan against actual", "What was expected, and what came.", draw_plan(summary)),
        ("Time by stage", "All on one scale.", draw_stages(summary)),
        ("Slowest batches", "The longest forwards.", sections.slowest(summary, events.start if events else None)),
        (
            "Exports",
            "Files of a Qdrant shard have holes: it takes less room on the disk than its size.",
            sections.exports(summary),
        ),
        ("How it was run", "To do it again.", sections.how(summary)),
    )
    title = f"{_title(summary, ended)}: {summary.output[:200]}"
    return frame(title, _verdict(summary, ended) + _about_events(events), parts)


def hues_of(models: Iterable[str]) -> dict[str, str]:
    """A colour for each model, by the order in which they are named."""
    return {name: f"h{index % HUES}" for index, name in enumerate(dict.fromkeys(models))}


def _status(summary: RunSummary, ended: bool) -> str:
    if not ended or (not summary.ok and any(each.status == "partial" for each in summary.collections)):
        return "partial"
    return "completed" if summary.ok else "failed"


def _word(summary: RunSummary, ended: bool) -> str:
    failed = sum(each.status == "failed" for each in summary.collections)
    if not ended:
        return "Not ended"
    if failed and not summary.error:
        return f"{failed:,} of {len(summary.collections):,} collections failed"
    return {"completed": "Completed", "partial": "Not complete", "failed": "Failed"}[_status(summary, ended)]


def _title(summary: RunSummary, ended: bool) -> str:
    found, embedded = (sum(getattr(each.chunks, key) for each in summary.collections) for key in ("found", "embedded"))
    if not found:
        return f"No chunk was embedded in {duration(summary.seconds)}"
    if not ended:  # chunks are counted when a pass ends
        encoded = sum(each.chunks.newly_encoded for each in summary.collections)
        return f"{counted(encoded, 'text')} encoded in {duration(summary.seconds)}, then events end"
    return f"{embedded:,} of {found:,} chunks embedded in {duration(summary.seconds)}"


def _verdict(summary: RunSummary, ended: bool) -> str:
    status = _status(summary, ended)
    version = summary.versions.get("ultimate-embedder", "")
    when = summary.started_at.replace("T", " ")[:16]
    about = " ".join(word for word in (summary.program, version) if word) + (f", {when} UTC" if when else "")
    models = list(dict.fromkeys(one.model for each in summary.collections for one in each.passes))
    names = [each.collection for each in summary.collections]
    told = f"{_listed(names)} with {_listed(models)}: {_in_short(summary)}." if models else ""
    told = told or summary.error or f"{_listed(names)}."
    return (
        f'<header><div class="status {status}"><b aria-hidden="true">{SIGNS[status]}</b>{text(_word(summary, ended))} '
        f"<small>{text(about)}</small></div><h1>{text(_title(summary, ended))}</h1><p>{text(told)}</p>"
        f"{sections.figures(summary)}</header>"
    )


def _in_short(summary: RunSummary) -> str:
    """What became of the chunks and of the memory, in a line."""
    counts = [each.chunks for each in summary.collections]
    rejected, truncated = (sum(getattr(each, key) for each in counts) for key in ("rejected", "truncated"))
    words = [f"{counted(rejected, 'record')} rejected" if rejected else "no record rejected"]
    words.append(f"{counted(truncated, 'chunk')} truncated" if truncated else "none truncated")
    shares = [
        each.peak_bytes / each.ceiling_bytes for each in summary.devices if not is_cpu(each.device) and each.peak_bytes
    ]
    if shares:
        words.append(f"memory stayed at {share(max(shares))} of its ceiling or below" if max(shares) <= 1 else OVER)
    return ", ".join(words)


def _listed(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more


def _about_events(events: Curves | None) -> str:
    if events is None:
        words = f"{EVENTS_NAME} is missing or cannot be read: there is no timeline. All else is from {SUMMARY_NAME}."
    elif events.newer_version is not None:
        words = (
            f"{EVENTS_NAME} was written by a later version of this program (version {events.newer_version} of the log, "
            f"this one knows {EVENTS_VERSION}): curves may lack something. Upgrade to see all."
        )
    elif events.damaged_lines:
        words = f"{counted(events.damaged_lines, 'line')} of {EVENTS_NAME} cannot be read: curves are incomplete."
    else:
        return ""
    return f'<p class="broken">{words}</p>'
