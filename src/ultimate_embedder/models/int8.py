"""The ways in which int8 products are computed. A way is part of a pass's identity, as its vectors differ from others'.

Our own kernels (`native_int8.py`), for models of BERT's shape on CPUs with AVX-512 VNNI: weights have a scale for
each group of inputs, activations a range.

OpenVINO: the weights of every product are int8 with a scale per output channel. On CPUs with VNNI the activations
become int8 too, in groups of neighbouring numbers of a row, each with a scale of its own; without VNNI they stay in
fp32. No scale is shared by rows, so that a vector does not depend on the texts beside it. Channels are brought to
similar size first (`runtimes/balance.py`): the words say so, as vectors without that are others. ONNX Runtime's dynamic
int8 has one scale for a whole batch, and its vectors depend on it; it has no word here, as earlier versions knew no
other way.
"""

from __future__ import annotations

TORCH, OPENVINO = "torch", "openvino"  # backends
NATIVE = "native-asymmetric"
"""Activations are rounded between the least and the largest of a group; `native` was as far below 0 as above."""
GROUPS = (128, 64, 32)
"""Sizes of groups, the fastest first: fewer scales are less work, and lose more."""
BALANCED = f"{OPENVINO}-balanced"
"""How the weights are made; graphs that were made otherwise are made again."""
WEIGHTS_ONLY = f"{BALANCED}-weights"
LEAST_GROUP = 16  # OpenVINO takes multiples of this


def in_groups(size: int, how: str = BALANCED) -> str:
    """The way with groups of at most this size."""
    return f"{how}-{size}"


def possible_ways(backend: str, *, has_vnni: bool) -> tuple[str | None, ...]:
    """What a backend can do, the fastest first; None is ONNX Runtime's."""
    if backend == TORCH:
        return tuple(in_groups(size, NATIVE) for size in GROUPS)
    if backend != OPENVINO:
        return (None,)
    return tuple(map(in_groups, GROUPS)) if has_vnni else (WEIGHTS_ONLY,)


def usual_way(backend: str, *, has_vnni: bool) -> str | None:
    """What a backend does where nothing else is asked for."""
    return possible_ways(backend, has_vnni=has_vnni)[0]


def group_size(way: str, divisor: int) -> int:
    """The size of groups for products whose inner sizes have this divisor: they must fit; 0 for fp32 activations."""
    size = _size(way)
    while size >= LEAST_GROUP and divisor % size:
        size //= 2
    return size if size >= LEAST_GROUP else 0


def in_words(way: str | None) -> str:
    """A way, for messages."""
    if way is None:
        return "ONNX Runtime, one scale per batch"
    size = _size(way)
    if way.startswith(NATIVE):
        return f"native kernels, groups of {size}"
    return f"OpenVINO, groups of {size}" if size else "OpenVINO, int8 weights, fp32 activations"


def _size(way: str) -> int:
    """The size of groups that a word has, also one of an older output; 0 if it has none."""
    word = way.rpartition("-")[2]
    return int(word) if word.isdecimal() else 0
