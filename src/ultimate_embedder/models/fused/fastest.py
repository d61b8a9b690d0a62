"""Which kernels are the fastest on this processor: tried in turn, so that other programs slow down all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from ultimate_embedder.models.fused.attention import attend
from ultimate_embedder.models.fused.native import native
from ultimate_embedder.models.fused.products import PRODUCTS, Product
from ultimate_embedder.models.fused.settings import BLAS, NATIVE, TORCH, Kernels, NotFusibleError

TOKENS, WIDTH, INNER, HEADS = 256, 384, 1536, 12  # a small batch in a small model
LENGTHS = ((1, 128), (2, 64))  # of its texts
ROUNDS = 15
WORTH = 0.97  # of the time: less of a gain may be chance

Work = Callable[[], object]


def fastest_kernels() -> Kernels:
    """The fastest in one thread, as a core of a run computes: some tenths of a second, and the time to compile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            products = {name: work for name in PRODUCTS if (work := _feed_forward(PRODUCTS[name]))}
            return Kernels(_fastest(products, BLAS), _fastest(_attentions(), TORCH))
    finally:
        torch.set_num_threads(threads)


def _feed_forward(kind: type[Product]) -> Work | None:
    """The two products that most time is spent on; None if this kind cannot be had here."""
    generator = torch.Generator().manual_seed(0)
    wide, narrow, hidden = (
        torch.randn(shape, generator=generator) for shape in ((INNER, WIDTH), (WIDTH, INNER), (TOKENS, WIDTH))
    )
    try:
        inner, outer = kind(wide, torch.zeros(INNER)), kind(narrow, torch.zeros(WIDTH))
        outer.added_to(hidden.clone(), inner.gelu(hidden))
    except (RuntimeError, AttributeError, NotFusibleError):  # torch or the processor has no oneDNN, or no compiler
        return None
    return lambda: outer.added_to(hidden.clone(), inner.gelu(hidden))


def _attentions() -> dict[str, Work]:
    joined = torch.randn(TOKENS, 3 * WIDTH, generator=torch.Generator().manual_seed(0))
    own = native()
    ways: dict[str, Work] = {TORCH: partial(attend, joined, LENGTHS, HEADS, None)}
    return ways if own is None else {**ways, NATIVE: partial(attend, joined, LENGTHS, HEADS, None, own)}


def _fastest(works: dict[str, Work], usual: str) -> str:
    seconds = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            seconds[name] = min(seconds[name], _seconds(name, work))
    found = min(seconds, key=lambda name: seconds[name])
    best = found if seconds[found] < WORTH * seconds[usual] else usual
    # what is tried is a part of a layer: the whole gains more by our own code, with norms in place and without copies
    return NATIVE if NATIVE in works and seconds[best] >= WORTH * seconds[NATIVE] else best


def _seconds(name: str, work: Work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
