"""The way that a length takes under lasting pressure."""

from __future__ import annotations

from ultimate_embedder.batching import Detour, after_climb, after_detour
from ultimate_embedder.batching.detours import FIRST_WAIT, MOST_WAIT

ROOM = 1000


def test_a_length_goes_to_its_rung_at_once_until_some_batches_are_done() -> None:
    known = after_climb(None, "oom_chunk", ROOM)
    for _ in range(FIRST_WAIT):
        assert not known.is_due(ROOM)
        known = after_detour(known)
    assert known.is_due(ROOM)


def test_each_vain_attempt_at_the_better_way_doubles_the_wait() -> None:
    known = after_climb(None, "oom_chunk", ROOM)
    waits = [known.wait]
    for _ in range(12):
        known = after_climb(known, "oom_chunk", ROOM)
        waits.append(known.wait)
    assert waits[:4] == [FIRST_WAIT, FIRST_WAIT * 2, FIRST_WAIT * 4, FIRST_WAIT * 8]
    assert waits[-1] == MOST_WAIT
    assert known.batches == 0


def test_errors_grow_with_the_logarithm_of_the_batches() -> None:
    known, errors = after_climb(None, "oom_cpu", ROOM), 1
    for _ in range(1000):
        if known.is_due(ROOM):
            known, errors = after_climb(known, "oom_cpu", ROOM), errors + 1
        else:
            known = after_detour(known)
    assert errors <= 9


def test_the_better_way_is_tried_at_once_when_there_is_noticeably_more_room() -> None:
    known = after_climb(None, "oom_stream", ROOM)
    assert not known.is_due(int(ROOM * 1.05))
    assert known.is_due(int(ROOM * 1.2))
    assert not after_climb(known, "oom_stream", int(ROOM * 1.2)).is_due(int(ROOM * 1.2))


def test_a_rung_that_no_longer_helps_is_replaced_by_the_one_that_does() -> None:
    known = after_climb(Detour("oom_chunk", ROOM, batches=3), "oom_stream", ROOM // 2)
    assert (known.rung, known.room_bytes, known.batches) == ("oom_stream", ROOM // 2, 0)
