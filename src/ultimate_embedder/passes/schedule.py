"""Carry out the passes over a collection: who has which devices when. The mode says how; it is data (`modes.py`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ultimate_embedder.batching import EXPECTED_RESERVE_RATIO
from ultimate_embedder.config import Mode, RunConfig
from ultimate_embedder.devices import CpuDevice, Device, Lease, Leases
from ultimate_embedder.events import Emit, Mitigated, ModeChosen, TurnFinished
from ultimate_embedder.machine import usable_cores
from ultimate_embedder.models import Encoder
from ultimate_embedder.output import TOKENS_PREFIX
from ultimate_embedder.passes.modes import TURNS, Need, Turns, assign_devices, choose_mode
from ultimate_embedder.passes.run import ENOUGH_TOKENS, PassRun
from ultimate_embedder.passes.together import run_all
from ultimate_embedder.passes.worker import GUESSED_BYTES_PER_TOKEN, Worker
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.vectors import TokenStore

TURN_TEXTS = 4096  # the first turn of models that take turns; later ones are as long as they must be
MOST_TURN_TEXTS = 1 << 18
MOVING_SHARE = 0.05  # of a turn, at most, goes into moving weights
COMFORTABLE_LENGTH = 512
SMALLEST_LENGTH = 2048  # one text of this length is the smallest batch that a device must have room for


@dataclass(frozen=True)
class Stage:
    """What the passes are carried out on, and who is told."""

    config: RunConfig
    devices: Sequence[Device]
    leases: Leases
    stop: StopSwitch
    emit: Emit


def run_passes(runs: Sequence[PassRun], stage: Stage) -> None:
    """Run every pass to its end, or until the run is stopped. A pass that has nothing to do takes no device."""
    mode, why = _mode(runs, stage)
    stage.emit(
        ModeChosen(
            collection=runs[0].collection,
            mode=mode,
            why=why,
            fusion=stage.config.fusion if len(runs) > 1 else "none",
            weights={run.plan.name: run.plan.weight for run in runs},
        )
    )
    turns = TURNS[mode]
    shared = _share_tokens(runs)
    take_turns = turns.together or turns.lease == "window"
    for group in [list(runs)] if take_turns else [[run] for run in runs]:
        seats = _own_seats(group, stage) if turns.together else [Seat(run, stage.devices) for run in group]
        for seat in seats:
            seat.run.start(seat.devices)
        if turns.together:
            _step(seats, _fixed_windows(runs[0].rows), stage)
        else:
            _rotate(seats, turns, stage)
        for run in group:
            run.finish()
    if stage.stop.reason is None:
        for tokens in shared:
            tokens.remove()


def _share_tokens(runs: Sequence[PassRun]) -> list[TokenStore]:
    """Let passes that tokenise alike share their token ids, on disk; and use those that a stopped run has left.

    Who has a tokenizer file of its own, and nothing to go on with, is not asked: to ask, the model must be loaded.
    """
    waiting = [run for run in runs if run.wanted.any()]
    files = [run.plan.tokenizer_file() for run in waiting]
    alike: dict[Path, list[PassRun]] = {}
    for run, file in zip(waiting, files, strict=True):
        shared = files.count(file) > 1 or any(run.scratch.glob(f"{TOKENS_PREFIX}*"))
        if file is not None and shared and (fingerprint := run.encoder.tokenizer_fingerprint()):
            alike.setdefault(run.scratch / f"{TOKENS_PREFIX}{fingerprint}", []).append(run)
    stores = []
    for folder, sharing in alike.items():
        if len(sharing) > 1 or folder.is_dir():
            stores.append(TokenStore(folder))
            for run in sharing:
                run.shared_tokens = stores[-1]
    return stores


@dataclass(frozen=True)
class Seat:
    """A pass and the devices that it is to have."""

    run: PassRun
    devices: Sequence[Device]
    refuges: Sequence[Device] = ()


def _rotate(seats: Sequence[Seat], turns: Turns, stage: Stage) -> None:
    """One pass after the other, each on all devices: over everything, or window by window in turns."""
    start, rows = 0, seats[0].run.rows
    texts = TURN_TEXTS if turns.lease == "window" else rows
    while start < rows:
        window = slice(start, min(start + texts, rows))
        costs = [_step([seat], [window], stage) for seat in seats]
        if turns.lease == "window":
            _report_turn(window, costs, seats[0].run.collection, stage.emit)
            texts = max([TURN_TEXTS, *(min(MOST_TURN_TEXTS, turn_texts(cost)) for cost in costs if cost.texts)])
        start = window.stop


def _step(seats: Sequence[Seat], windows: Iterable[slice], stage: Stage) -> Cost:
    """Lease devices for the passes, let them work on the windows at the same time, and give the devices back."""
    seats = [seat for seat in seats if seat.run.wanted.any()]
    windows = [window for window in windows if any(seat.run.wanted[window].any() for seat in seats)]
    if not windows or stage.stop.reason is not None:
        return Cost()
    started = time.perf_counter()
    # a model may ask those after it to make room, never those before it: so nobody waits for each other
    after: list[list[Worker]] = [[] for _ in seats]
    leases = []
    with ExitStack() as stack:
        party = f"{seats[0].run.collection} #{started}" if len(seats) > 1 else None
        working: list[list[Worker]] = []
        for seat, companions in zip(seats, after, strict=True):
            leases.append(stack.enter_context(_lease(seat, party, stage)))
            seated = seat.run.seated(leases[-1], stage.config.parallelism, companions=companions, refuges=seat.refuges)
            working.append(stack.enter_context(seated))
        for number, companions in enumerate(after):
            companions += [worker for workers in working[number + 1 :] for worker in workers]
        for window in windows:
            failed = threading.Event()
            jobs = [
                partial(seat.run.encode, workers, window, failed.is_set)
                for seat, workers in zip(seats, working, strict=True)
                if seat.run.wanted[window].any()
            ]
            run_all(jobs, stop=failed.set)
    texts = sum(int(seat.run.wanted[window].sum()) for seat in seats for window in windows)
    moving = sum(lease.moving_seconds for lease in leases)
    return Cost(texts, moving, time.perf_counter() - started - moving)


def _lease(seat: Seat, party: str | None, stage: Stage) -> AbstractContextManager[Lease]:
    config, plan = stage.config, seat.run.plan
    need = need_of(seat.run.encoder) if config.keep_primary or config.warm_cache else None
    return stage.leases.lease(
        plan.name,
        seat.devices,
        collection=seat.run.collection,
        party=party,
        needed_bytes=int((need.weight_bytes + need.comfortable_bytes) * EXPECTED_RESERVE_RATIO) if need else 0,
        keep=config.warm_cache or (config.keep_primary and plan.number == 0),
    )


def _mode(runs: Sequence[PassRun], stage: Stage) -> tuple[Mode, str]:
    waiting = [run for run in runs if run.wanted.any()]
    if len(runs) == 1:
        return "single", "there is one model"
    if stage.config.mode != "auto":
        return stage.config.mode, "asked for"
    if not waiting:
        return "exclusive", "all vectors are stored: nothing is to be encoded"
    if len(waiting) == 1:
        return "exclusive", f"only {waiting[0].plan.name} has texts to encode"
    cards = _cards(stage.devices)
    return choose_mode([need_of(run.encoder) for run in waiting] if cards else [], _room(cards))


def _own_seats(runs: Sequence[PassRun], stage: Stage) -> list[Seat]:
    """A device for each pass, all at the same time; passes that have nothing to do take none."""
    cards, waiting = _cards(stage.devices), [run for run in runs if run.wanted.any()]
    if not cards or not waiting:
        share = max(1, usable_cores() // max(1, len(waiting)))
        return [Seat(run, [CpuDevice(share)]) for run in runs]
    places = assign_devices([need_of(run.encoder) for run in waiting], _room(cards))
    seats = {}
    for run, place in zip(waiting, places, strict=True):
        device = cards[place] if place is not None else CpuDevice()
        refuges = [card for card in cards[1:] if card is not device] if run is not waiting[0] else []
        seats[run.plan.number] = Seat(run, [device], refuges)
        if run is not waiting[0] and device is not cards[0]:
            kind = "companion_gpu_routed" if place is not None else "companion_cpu_fallback"
            details = {"model": run.plan.name, "before": cards[0].name, "after": device.name}
            stage.emit(Mitigated(collection=run.collection, kind=kind, details=details))
    return [seats.get(run.plan.number, Seat(run, stage.devices[:1])) for run in runs]


def need_of(encoder: Encoder) -> Need:
    """What a model takes on a device, predicted."""

    def activations(tokens: int, length: int) -> int:
        length = min(length, encoder.max_tokens)
        rows = max(1, tokens // length)
        if encoder.tokenizes:
            return encoder.peak_bytes(rows, length)
        return rows * length * GUESSED_BYTES_PER_TOKEN

    return Need(
        model=encoder.name,
        weight_bytes=encoder.weight_bytes,
        smallest_bytes=activations(1, SMALLEST_LENGTH),
        comfortable_bytes=activations(ENOUGH_TOKENS, COMFORTABLE_LENGTH),
    )


def _cards(devices: Sequence[Device]) -> list[Device]:
    return [device for device in devices if not isinstance(device, CpuDevice)]


def _room(cards: Sequence[Device]) -> list[int]:
    return [int(card.hold_ceiling().usable_bytes / EXPECTED_RESERVE_RATIO) for card in cards]


@dataclass(frozen=True)
class Cost:
    """Where the time of a turn went."""

    texts: int = 0
    moving_seconds: float = 0.0
    working_seconds: float = 0.0


def turn_texts(cost: Cost) -> int:
    """How many texts a turn must have for moving weights to be a small part of it."""
    working = cost.moving_seconds * (1 - MOVING_SHARE) / MOVING_SHARE
    return int(cost.texts * working / max(cost.working_seconds, 1e-9))


def _report_turn(window: slice, costs: Sequence[Cost], collection: str, emit: Emit) -> None:
    total = sum(cost.moving_seconds + cost.working_seconds for cost in costs)
    share = sum(cost.moving_seconds for cost in costs) / max(total, 1e-9)
    emit(TurnFinished(collection=collection, texts=window.stop - window.start, moving_share=share))


def _fixed_windows(rows: int) -> list[slice]:
    return [slice(start, min(start + TURN_TEXTS, rows)) for start in range(0, rows, TURN_TEXTS)]
