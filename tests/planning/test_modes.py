"""Who gets which device, and what `auto` means, as plain functions of sizes."""

from __future__ import annotations

import pytest

from ultimate_embedder.planning import MODES, DeviceRoom, MemoryNeed, assign_devices, choose_mode

SMALL = MemoryNeed("small", weight_bytes=10, smallest_bytes=2, comfortable_bytes=20)
MEDIUM = MemoryNeed("medium", weight_bytes=20, smallest_bytes=4, comfortable_bytes=40)
LARGE = MemoryNeed("large", weight_bytes=60, smallest_bytes=6, comfortable_bytes=80)


def rooms(room_bytes: list[int]) -> list[DeviceRoom]:
    return [DeviceRoom(f"gpu:{number}", True, size) for number, size in enumerate(room_bytes)]


@pytest.mark.parametrize(
    ("needs", "room_bytes", "places"),
    [
        # the primary has the first device, whatever it needs
        ([SMALL], [100], [0]),
        ([LARGE], [10], [0]),
        ([LARGE], [10, 100], [0]),
        # a companion goes to the next device as soon as its smallest batch fits there
        ([LARGE, SMALL], [200, 100], [0, 1]),
        ([LARGE, SMALL], [200, 12], [0, 1]),
        ([SMALL, LARGE], [100, 66], [0, 1]),
        # else to the first one, but only in comfort: all weights and the largest comfortable batch
        ([LARGE, SMALL], [150, 11], [0, 0]),
        ([LARGE, SMALL], [149, 11], [0, None]),
        ([SMALL, MEDIUM], [70], [0, 0]),
        ([SMALL, MEDIUM], [69], [0, None]),
        # else to the CPU
        ([LARGE, LARGE], [100, 65], [0, None]),
        ([LARGE, MEDIUM, SMALL], [100], [0, None, None]),
        # three models, two devices: the companions share the second one, weights of both and the larger batch
        ([LARGE, MEDIUM, SMALL], [100, 34], [0, 1, 1]),
        ([LARGE, MEDIUM, SMALL], [100, 33], [0, 1, None]),
        ([LARGE, SMALL, MEDIUM], [100, 33], [0, 1, None]),
        ([LARGE, MEDIUM, SMALL], [170, 33], [0, 1, 0]),
        # one that has no place does not keep those after it from theirs
        ([LARGE, LARGE, SMALL], [100, 50], [0, None, 1]),
        # three models, three devices: one each
        ([LARGE, MEDIUM, SMALL], [200, 200, 200], [0, 1, 2]),
        ([LARGE, MEDIUM, SMALL, SMALL], [200, 200, 200], [0, 1, 2, 1]),
        ([LARGE, MEDIUM, SMALL], [200, 20, 200], [0, 2, 1]),
    ],
)
def test_each_model_gets_a_device_where_the_first_may_be_shared(
    needs: list[MemoryNeed], room_bytes: list[int], places: list[int | None]
) -> None:
    assert [each.card for each in assign_devices(needs, rooms(room_bytes), share=True)] == places


@pytest.mark.parametrize(
    ("needs", "room_bytes", "places", "why"),
    [
        ([LARGE, SMALL], [1000, 100], [0, 1], "gpu:1 has room for it"),
        ([LARGE, SMALL], [1000, 11], [0, None], "no other GPU has 0 MB for it (gpu:1 has 0 MB)"),
        ([LARGE, SMALL], [1000], [0, None], "there is no second GPU"),
        ([LARGE, SMALL, MEDIUM], [1000, 33], [0, 1, None], "no other GPU has 0 MB for it (gpu:1 has 0 MB)"),
    ],
)
def test_a_companion_goes_to_another_gpu_else_to_the_cpu_and_never_to_the_primarys(
    needs: list[MemoryNeed], room_bytes: list[int], places: list[int | None], why: str
) -> None:
    """Specification: "when GPU 1 is available it MUST be used for companion workloads before reverting to CPU"."""
    assigned = assign_devices(needs, rooms(room_bytes))
    assert [each.card for each in assigned] == places
    assert assigned[-1].why == why


def test_sharing_the_primarys_gpu_says_so() -> None:
    assert "--companions share" in assign_devices([SMALL, SMALL], rooms([1000]), share=True)[1].why


@pytest.mark.parametrize(
    ("needs", "room_bytes", "places"),
    [
        ([LARGE, SMALL], [200, 30], [0, 1]),
        ([LARGE, SMALL], [200, 29], [0, 0]),
        ([LARGE, SMALL], [100, 29], [0, None]),
        ([LARGE, MEDIUM, SMALL], [200, 70], [0, 1, 1]),
        ([LARGE, MEDIUM, SMALL], [140, 69], [0, 1, None]),
    ],
)
def test_in_comfort_a_device_must_hold_a_comfortable_batch(
    needs: list[MemoryNeed], room_bytes: list[int], places: list[int | None]
) -> None:
    assigned = assign_devices(needs, rooms(room_bytes), share=True, comfortably=True)
    assert [each.card for each in assigned] == places


@pytest.mark.parametrize(
    ("needs", "room_bytes", "mode", "why"),
    [
        ([], [], "exclusive", "on a CPU"),
        ([LARGE, SMALL], [150], "simultaneous", "all models fit"),
        ([LARGE, SMALL], [149], "exclusive", "no GPU has 0 MB for small beside the models before it"),
        ([LARGE, MEDIUM, SMALL], [140, 70], "simultaneous", "all models fit"),
        ([LARGE, MEDIUM, SMALL], [140, 69], "exclusive", "for small beside the models before it"),
        ([LARGE, MEDIUM, SMALL], [140, 59], "exclusive", "for medium beside the models before it"),
        ([LARGE, SMALL], [139, 1000], "exclusive", "large needs the first GPU to itself, and more"),
    ],
)
def test_auto_means_all_at_once_where_all_fit_in_comfort(
    needs: list[MemoryNeed], room_bytes: list[int], mode: str, why: str
) -> None:
    chosen, reason = choose_mode(needs, rooms(room_bytes), share=True)
    assert chosen == mode
    assert why in reason


def test_the_reason_names_the_size_that_was_missing() -> None:
    primary = MemoryNeed("primary", 10**9, 10**6, 10**9)
    companion = MemoryNeed("companion", 3 * 10**9, 10**6, 10**9)
    _, reason = choose_mode([primary, companion], rooms([4 * 10**9]), share=True)
    assert reason == "no GPU has 4,000 MB for companion beside the models before it"


def test_only_simultaneous_has_models_together_and_only_sequential_gives_devices_back_between_turns() -> None:
    assert [mode for mode, turns in MODES.items() if turns.together] == ["simultaneous"]
    assert [mode for mode, turns in MODES.items() if turns.lease == "turn"] == ["sequential"]


def test_auto_does_not_share_the_first_gpu_unless_told_to() -> None:
    mode, reason = choose_mode([SMALL, SMALL], rooms([1000]))
    assert mode == "exclusive"
    assert "--companions share allows it" in reason
    assert choose_mode([SMALL, SMALL], rooms([1000]), share=True)[0] == "simultaneous"
