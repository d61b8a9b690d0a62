"""The controller, scenario by scenario: a snapshot and a history in, a decision out."""

from __future__ import annotations

import dataclasses
import itertools

from ultimate_embedder.batching import Allowance, after_failure, after_success, decide
from ultimate_embedder.batching.controller import HEADROOM
from ultimate_embedder.types import MemorySnapshot

GB = 10**9
CALM = MemorySnapshot(
    device="gpu:0",
    total_bytes=15 * GB,
    free_bytes=12 * GB,
    allocated_bytes=3 * GB,
    reserved_bytes=3 * GB,
    peak_bytes=3 * GB,
    peak_reserved_bytes=3 * GB,
    external_bytes=0,
    ceiling_bytes=12 * GB,
)


def crowded(external_gb: float) -> MemorySnapshot:
    return dataclasses.replace(CALM, external_bytes=int(external_gb * GB))


def test_the_first_batch_may_use_what_the_ceiling_leaves_beside_the_weights() -> None:
    decision = decide(None, CALM, reserve_ratio=1.0)
    assert decision.action == "keep"
    assert decision.allowance.activation_bytes == int(12 * GB * (1 - HEADROOM)) - 3 * GB


def test_a_process_that_takes_memory_shrinks_the_next_batch_at_once() -> None:
    first = decide(None, CALM, 1.0).allowance
    decision = decide(first, crowded(4), 1.0)
    assert decision.action == "shrink"
    assert decision.allowance.activation_bytes == first.activation_bytes - 4 * GB
    assert decision.reason == "others hold 4000000000 bytes of gpu:0"


def test_batches_grow_back_step_by_step_when_the_process_leaves() -> None:
    full = decide(None, CALM, 1.0).allowance
    small = decide(full, crowded(7), 1.0).allowance
    steps = [small.activation_bytes]
    allowance = small
    while (decision := decide(allowance, CALM, 1.0)).action == "grow":
        allowance = decision.allowance
        steps.append(allowance.activation_bytes)
    assert len(steps) > 3
    for earlier, later in itertools.pairwise(steps):
        assert later <= earlier * 1.26 or later <= full.activation_bytes // 15
    assert allowance.activation_bytes >= full.activation_bytes * 0.98


def test_nothing_changes_when_nothing_has_changed() -> None:
    first = decide(None, CALM, 1.0).allowance
    assert decide(first, CALM, 1.0).action == "keep"
    assert decide(first, CALM, 1.0).allowance == first


def test_an_allocator_that_reserves_more_gets_smaller_batches() -> None:
    lean = decide(None, CALM, reserve_ratio=1.0).allowance.activation_bytes
    wasteful = decide(None, CALM, reserve_ratio=1.5).allowance.activation_bytes
    assert wasteful == int(12 * GB * (1 - HEADROOM) / 1.5) - 3 * GB
    assert wasteful < lean


def test_a_failure_is_remembered_and_slowly_forgiven() -> None:
    first = decide(None, CALM, 1.0).allowance
    failed = after_failure(first, failed_bytes=5 * GB)
    assert failed.activation_bytes == int(5 * GB * 0.7)
    decision = decide(failed, CALM, 1.0)
    assert decision.allowance.activation_bytes < first.activation_bytes * 0.75
    forgiven = failed
    for _ in range(100):
        forgiven = after_success(forgiven)
    assert forgiven.caution == 1.0


def test_no_room_at_all_is_no_error_here() -> None:
    assert decide(Allowance(GB), crowded(12), 1.0).allowance.activation_bytes == 0
