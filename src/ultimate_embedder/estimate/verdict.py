"""The end of a plan: whether it fits, in one line, and everything that is in the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ultimate_embedder.estimate.collection import CountedCollection, CountedPass
from ultimate_embedder.planned import (
    MissingFromPlan,
    Plan,
    PlannedCollection,
    PlannedDevice,
    PlannedModel,
    byte_size,
    duration,
)
from ultimate_embedder.planning import CardForecast
from ultimate_embedder.terminal import counted

TRY_HERE = " (run once on this machine, or give --calibrate)"
NAME_THE_CARD = " (name the card, such as --gpus t4x2: no time follows from its size)"
GB = 1e9
BOTTLENECKS = {
    "nodes": "the nodes",
    "driver": "what the driver can store",
    "network": "the network of the driver",
}


def model_problems(
    missing: Sequence[MissingFromPlan], models: Sequence[PlannedModel], *, offline: bool
) -> Iterator[str]:
    """Models whose weights a run would not find; where the hub was asked for them, the note has what to do."""
    for each in missing:
        yield _with_remedy(f"{each.model} {each.why}", each.model, offline=offline)
    for model in models:
        if model.weights == "missing":
            why = model.note or f"{model.model}: its weights are not on this machine"
            yield _with_remedy(why, model.model, offline=offline and model.hub_id is not None)


def _with_remedy(problem: str, model: str, *, offline: bool) -> str:
    remedy = f" Run 'ultimate-embedder models pull {model}', or drop --offline." if offline else ""
    return f"{problem.rstrip('.')}.{remedy}"


def memory_problems(passes: Sequence[tuple[str, CountedPass]], devices: Sequence[PlannedDevice]) -> Iterator[str]:
    """Passes that some card has no room for; a run would go on all the same, by slower ways."""
    ceilings = {device.name: device.ceiling_bytes for device in devices}
    for collection, each in passes:
        for name, card in each.placed.cards.items() if each.placed else ():
            if problem := _card_problem(card, each, name, ceilings[name]):
                yield f"{collection}: {problem}"
                break


def _card_problem(card: CardForecast, each: CountedPass, name: str, ceiling_bytes: int) -> str | None:
    model = each.plan.name
    if card.streamed:
        size = each.memory.encoder.weight_bytes
        return (
            f"the weights of {model} ({byte_size(size)}) have no room on {name} (ceiling {byte_size(ceiling_bytes)})."
            " embed would stream its layers from the host, which is slow: use a larger card or a smaller model."
        )
    if card.too_large:
        batches = counted(card.too_large, "batch").replace("batchs", "batches")
        most = card.longest_that_fits
        limit = f"--max-tokens {most}" if most else "a larger card"
        return (
            f"{batches} of {model} have texts that {name} (ceiling {byte_size(ceiling_bytes)}) has no room for. embed "
            f"would run these in pieces, which is slow: use {limit}, or --overlong pool."
        )
    return None


def host_problems(passes: Sequence[tuple[str, CountedPass]], available_bytes: int) -> Iterator[str]:
    """Models that the host has no memory for: all are loaded there first, and stay there."""
    sizes = {each.plan.name: each.memory.encoder.weight_bytes for _, each in passes if each.counts.texts}
    needed = sum(sizes.values())
    if needed > available_bytes:
        yield (
            f"the weights of {' and '.join(sizes)} take {byte_size(needed)} of the host's memory, and "
            f"{byte_size(available_bytes)} are available. Close other programs, or use fewer models."
        )


def mode_notes(collections: Sequence[PlannedCollection]) -> Iterator[str]:
    """Modes that are faster than the chosen one, whatever the ends of the two ranges."""
    for each in collections:
        times = {mode.mode: mode.seconds for mode in each.modes if mode.fits and mode.seconds}
        chosen = times.get(each.mode)
        best = min(times, key=lambda mode: times[mode].high, default=each.mode)
        if chosen is not None and times[best].high < chosen.low:
            yield (
                f"{each.collection}: encoding takes {times[best]} with --mode {best}, and {chosen} in mode {each.mode}"
            )


def collection_problems(collections: Sequence[PlannedCollection]) -> Iterator[str]:
    """Collections that cannot be embedded."""
    for each in collections:
        if each.error is not None:
            yield f"{each.collection}: {each.error}"


def verdict(plan: Plan, missing: Sequence[str], *, here: bool) -> str:
    """One line: whether it fits, where, how long, what it costs; `missing` are models, `here` means on this machine."""
    others = len(plan.problems) - len(missing)
    if others:
        first = plan.problems[len(missing)]
        more = f" (and {len(plan.problems) - 1} more)" if len(plan.problems) > 1 else ""
        return f"does not fit: {first.split('. ')[0].rstrip('.')}{more}"
    if missing:
        names = ", ".join(missing)
        absent = f"something is missing: {names} {'is' if len(missing) == 1 else 'are'} not on this machine"
        return "; ".join([absent, f"otherwise it fits: {_where(plan)}", *_how_long(plan, ""), *_cost(plan)])
    new = sum(each.new_texts for collection in plan.collections for each in collection.passes)
    new += sum(each.words.new_texts for each in plan.collections if each.words)
    if not new:
        return "fits: all vectors are stored, nothing is to be encoded"
    unknown = TRY_HERE if here else NAME_THE_CARD
    return "; ".join([f"fits: {_where(plan)}", *_how_long(plan, unknown), *_cost(plan)])


def _where(plan: Plan) -> str:
    names = [device.hardware for device in plan.devices]
    words = [f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    modes = dict.fromkeys(each.mode for each in plan.collections if each.mode and each.mode != "single")
    nodes = f"{counted(plan.cluster.nodes, 'node')} of " if plan.cluster is not None else ""
    return ", ".join([nodes + " + ".join(words), *modes])


def _how_long(plan: Plan, unknown: str) -> Iterator[str]:
    time = plan.time
    if time is None or time.total is None:
        yield f"how long is not known{unknown}"
        return
    yield f"{time.total} ({time.total.basis})"
    if plan.cluster is not None and plan.cluster.bottleneck is not None:
        help_more = plan.cluster.bottleneck == "nodes" and plan.cluster.nodes < plan.cluster.useful_nodes
        more = ", more of them help" if help_more else ""
        yield f"the bottleneck is {BOTTLENECKS[plan.cluster.bottleneck]}{more}"
    low, high = time.sessions_low, time.sessions_high
    if low is None or high is None:
        yield f"starting takes longer than a session of {duration(time.session_seconds)}"
    else:
        sessions = counted(high, "session") if low == high else f"{low} to {high} sessions"
        yield f"{sessions} of {duration(time.session_seconds)}"


def _cost(plan: Plan) -> Iterator[str]:
    if plan.cost is not None:
        each = f" and node, for {plan.cost.machines:,} nodes" if plan.cost.machines > 1 else ""
        yield f"costs {plan.cost.low:,.2f} to {plan.cost.high:,.2f} at {plan.cost.price_per_hour:g} per hour{each}"


def device_lines(devices: Sequence[PlannedDevice], collections: Sequence[CountedCollection]) -> Iterator[PlannedDevice]:
    """Each device with the most that any pass makes it hold."""
    for device in devices:
        found = [
            card
            for collection in collections
            for each in collection.passes
            if each.placed
            for name, card in each.placed.cards.items()
            if name == device.name
        ]
        if not found:
            yield device
            continue
        largest = max(found, key=lambda card: card.peak_bytes)
        yield device.model_copy(
            update={
                "peak_bytes": largest.peak_bytes,
                "reserved_bytes": max(card.reserved_bytes for card in found),
                "fits": all(card.fits for card in found),
                "why": _why(found),
            }
        )


def _why(cards: Sequence[CardForecast]) -> str:
    if any(card.streamed for card in cards):
        return "no room for all weights"
    if any(card.too_large for card in cards):
        return "no room for the longest texts"
    if any(card.in_parts for card in cards):
        return "large batches are run in parts"
    return "every batch as planned"
