"""A plan as lines for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ultimate_embedder.planned import (
    Plan,
    PlannedCluster,
    PlannedCollection,
    PlannedModel,
    PlannedPass,
    PlannedSeconds,
    byte_size,
    two_digits,
)
from ultimate_embedder.terminal import counted, printable
from ultimate_embedder.types import VectorSpec

WIDTH = 110
BAR = 24
LIMITS = {"nodes": "encoding on the nodes", "driver": "storing on the driver", "network": "network of the driver"}
GUESSED = "~"
"""Before a number that is estimated."""
Row = Sequence[str]


def plan_lines(plan: Plan) -> Iterator[str]:
    """All of a plan; the verdict is the last line."""
    for collection in plan.collections:
        yield from _collection_lines(collection)
    if plan.models:
        yield from _section("models", _table(("model", "weights", "in memory", "dims", "tokens", "is"), _models(plan)))
        yield from _activations(plan.models)
    if plan.devices:
        yield from _section("devices", _table(("device", "", "ceiling", "peak", "reserved", ""), _devices(plan)))
    if plan.cluster is not None and plan.cluster.bottleneck is not None:
        yield from _section(f"{counted(plan.cluster.nodes, 'node')} like this", list(_cluster(plan.cluster)))
    if plan.disk is not None:
        yield from _section("disk", [_disk(plan)])
    if plan.time is not None and plan.time.stages:
        yield from _section("time", _table(("stage", "time", "based on"), _times(plan)))
    yield from _wrapped([f"note: {note}" for note in plan.warnings])
    yield from _wrapped([f"problem: {problem}" for problem in plan.problems])
    yield ""
    yield printable(plan.verdict)


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield ""
    yield title
    yield from (f"  {line}" for line in lines)


def _collection_lines(collection: PlannedCollection) -> Iterator[str]:
    yield from _section(printable(collection.collection), list(_about(collection)))
    if collection.passes:
        headings = ("model", "texts", "tokens", "padding", "truncated", "batches", "peak", "time")
        yield from _indented(_table(headings, [_pass_row(each, collection) for each in collection.passes]))
        yield from _indented(_histogram(collection.passes))
    if collection.modes:
        yield from _indented([f"{'mode':14}{'':14}{'to encode':20}why"])
    for mode in collection.modes:
        chosen = " <- chosen" if mode.mode == collection.mode else ""
        took = f"{mode.seconds}" if mode.seconds else "not known"
        words = f"{mode.mode:14}{'fits' if mode.fits else 'does not fit':14}{took:20}{printable(mode.why)}{chosen}"
        yield from _indented(textwrap.wrap(words, WIDTH, subsequent_indent=" " * 48))


def _about(collection: PlannedCollection) -> Iterator[str]:
    rejected = f", {collection.rejected:,} rejected" if collection.rejected else ""
    found = f"{counted(collection.found, 'chunk')} in {counted(collection.files, 'file')}{rejected}"
    if collection.error is not None:
        yield from textwrap.wrap(printable(f"cannot be embedded: {collection.error}"), WIDTH)
        return
    if collection.skipped:
        yield f"{found}: it has its exports, and --skip-existing is set"
        return
    vectors = " + ".join(_vector(each) for each in collection.vectors)
    out = f"{counted(collection.points, 'point')}{f' with {vectors}' if vectors else ''}"
    yield printable(f"{found}; {counted(collection.distinct_texts, 'distinct text')} -> {out}")
    for each in collection.passes:
        yield printable(f"{each.model}: {changes(each, collection)}")
    if (words := collection.words) is not None:
        took = f"; {words.seconds}" if words.seconds and words.new_texts else ""
        counts = f"+ {words.new_texts:,} new, = {words.stored_texts:,} stored; {words.words:,} words to count"
        yield printable(f"{words.model}: {counts}, {words.values:,} values{took}")
    for reason in collection.rejected_because[:1]:
        yield from textwrap.wrap(printable(f"rejected: {reason}"), WIDTH)
    if collection.mode_reason and len(collection.passes) > 1:
        yield printable(f"mode {collection.mode}: {collection.mode_reason}")


def _vector(vector: VectorSpec) -> str:
    kind = str(vector.dim) if vector.dim else vector.kind
    return f"{vector.name} {kind}" if vector.name else f"{kind} dims"


def changes(each: PlannedPass, collection: PlannedCollection) -> str:
    """What is new, what is stored, and what is gone: `+ 41,203 new, = 958,797 stored, - 312 removed`."""
    removed = "?" if collection.removed_texts is None else f"{collection.removed_texts:,}"
    stored = f"{each.stored_texts:,}" if each.fingerprint is not None else "?"
    return f"+ {each.new_texts:,} new, = {stored} stored, - {removed} removed"


def _pass_row(each: PlannedPass, collection: PlannedCollection) -> Row:
    guessed = "" if each.exact else GUESSED
    lost = f" ({each.lost_share * 100:.1f} % of tokens)" if each.truncated else ""
    parts = f" ({each.batches_in_parts:,} in parts)" if each.batches_in_parts else ""
    return (
        each.model,
        f"{each.new_texts:,}",
        f"{guessed}{each.tokens:,}",
        f"{each.padding * 100:.1f} %" if each.tokens else "-",
        f"{guessed}{each.truncated:,}{lost}" if each.truncated else "none",
        f"{each.batches:,} of up to {each.largest_batch_rows:,} rows{parts}",
        byte_size(max(each.peak_bytes.values())) if each.peak_bytes else "-",
        str(each.seconds) if each.seconds else "not known",
    )


def _histogram(passes: Sequence[PlannedPass]) -> Iterator[str]:
    """Lengths of the texts, in tokens; one for models that see the same lengths."""
    seen: list[list[tuple[int, int]]] = []
    for each in passes:
        bins = [(length.up_to, length.texts) for length in each.lengths]
        if not bins or bins in seen:
            continue
        seen.append(bins)
        name = f" for {each.model}" if len(passes) > 1 else ""
        yield printable(f"tokens of a text{name}, the longest has {each.longest_tokens:,}:")
        most = max(texts for _, texts in bins)
        for up_to, texts in bins:
            bar = "#" * max(1, round(BAR * texts / most))
            yield f"  up to {up_to:>6,} {bar:{BAR}} {texts:,}"


def _models(plan: Plan) -> Iterator[Row]:
    for model in plan.models:
        guessed = "" if model.exact else GUESSED
        yield (
            model.model,
            f"{byte_size(model.file_bytes)} of files" if model.file_bytes else "?",
            f"{guessed}{byte_size(model.weight_bytes)} in {model.dtype}",
            f"{model.dim or '?'}",
            f"{model.max_tokens or '?'}",
            _place(model),
        )


def _place(model: PlannedModel) -> str:
    if model.weights == "here":
        return "on this machine"
    if model.weights == "hub":
        return f"on the hub: {byte_size(model.download_bytes)} to download"
    return "missing" if model.exact else "missing; sizes from the registry, tokens by a stand-in"


def _activations(models: Sequence[PlannedModel]) -> Iterator[str]:
    for model in models:
        if model.activations:
            sizes = [f"{each.rows} x {each.tokens:,} {byte_size(each.size_bytes)}" for each in model.activations]
            words = printable(f"{model.model}, activations (rows x tokens): {', '.join(sizes)}")
            yield from _indented(textwrap.wrap(words, WIDTH, subsequent_indent="  "))


def _devices(plan: Plan) -> Iterator[Row]:
    for device in plan.devices:
        if device.has_ceiling:
            share = f" ({(device.reserved_bytes + device.outside_bytes) / max(1, device.ceiling_bytes) * 100:.0f} %)"
            yield (
                device.name,
                device.hardware,
                byte_size(device.ceiling_bytes),
                byte_size(device.peak_bytes) if device.peak_bytes else "-",
                f"{byte_size(device.reserved_bytes + device.outside_bytes)}{share}" if device.peak_bytes else "-",
                device.why or "not used",
            )
        else:  # a run keeps no account of the host's memory beside the weights
            yield (device.name, device.hardware, byte_size(device.ceiling_bytes), "-", "-", "memory of the host")


def _cluster(cluster: PlannedCluster) -> Iterator[str]:
    """What encoding is limited by, and what travels."""
    low, high = cluster.texts_per_second_low, cluster.texts_per_second_high
    yield f"encoding: {two_digits(low)} to {two_digits(high)} texts per second; on one node {cluster.one_node}"
    rows = []
    for name, seconds in cluster.limits.items():
        mark = " <- bottleneck" if name == cluster.bottleneck else ""
        rows.append((LIMITS.get(name, name), str(seconds), f"{seconds.basis}{mark}"))
    yield from _table(("limited by", "time", "based on"), rows)
    yield f"more than about {counted(cluster.useful_nodes, 'node')} would not be faster"
    back = "keys alone come back (--shared-output)" if cluster.shared_output else "come back"
    out, per_text = f"{cluster.bytes_out_per_text:,.0f}", f"{cluster.bytes_back_per_text:,.0f}"
    total = f"{byte_size(cluster.bytes_out)} and {byte_size(cluster.bytes_back)} in all"
    yield f"network: {out} bytes per text go out, {per_text} {back}; {total}"


def _disk(plan: Plan) -> str:
    disk = plan.disk
    if disk is None:
        return ""
    parts = f"{byte_size(disk.store_bytes)} of vectors, {byte_size(disk.export_bytes)} of exports"
    models = f", {byte_size(disk.download_bytes)} of models" if disk.download_bytes else ""
    free = f"{byte_size(disk.free_bytes)} free in {disk.folder}{'' if disk.fits else ': NOT ENOUGH'}"
    return printable(f"{byte_size(disk.needed_bytes)} needed ({parts}{models}), {free}")


def _times(plan: Plan) -> Iterator[Row]:
    time = plan.time
    if time is None:
        return
    for name, seconds in time.stages.items():
        yield (name, *_seconds(seconds))
    if time.total is not None:
        yield ("all", *_seconds(time.total.model_copy(update={"basis": ""})))


def _seconds(seconds: PlannedSeconds) -> Row:
    return str(seconds), seconds.basis


def _table(headings: Row, rows: Iterator[Row] | Sequence[Row]) -> list[str]:
    """Columns of equal width; the last one is as wide as it is."""
    cells = [[*headings], *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings) - 1)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip() for row in cells]


def _indented(lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in lines)


def _wrapped(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield ""
    for line in lines:
        yield from textwrap.wrap(printable(line), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
