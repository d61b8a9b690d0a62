"""What `nn.DataParallel` needs and a torch for CPUs lacks: scatter, gather and broadcast between devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any


def supply_collectives(kind: str) -> None:
    """Give torch the missing functions, made of plain copies; those it has are left alone."""
    import torch

    def device(place: Any) -> torch.device:
        return torch.device(kind, place) if isinstance(place, int) else torch.device(place)

    def scatter(tensor: Any, places: Sequence[Any], sizes: Any = None, dim: int = 0, streams: Any = None) -> Any:
        parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(places), dim)
        return tuple(map(send, parts, places, streams or [None] * len(places)))

    def send(part: Any, place: Any, stream: Any) -> Any:
        with stream or nullcontext():  # `nn.DataParallel` waits for it
            return part.to(device(place), non_blocking=True)

    def gather(tensors: Sequence[Any], dim: int, place: Any = None) -> Any:
        target = torch.device("cpu") if place == -1 else device(tensors[0].device if place is None else place)
        return torch.cat([tensor.to(target) for tensor in tensors], dim)

    def broadcast(tensor: Any, places: Sequence[Any]) -> list[Any]:
        return [tensor.to(device(place)) for place in places]

    def broadcast_coalesced(tensors: Sequence[Any], places: Sequence[Any], buffer_size: int = 0) -> list[list[Any]]:
        return [[tensor.to(device(place)) for tensor in tensors] for place in places]

    missing = {
        "_scatter": scatter,
        "_gather": gather,
        "_broadcast": broadcast,
        "_broadcast_coalesced": broadcast_coalesced,
    }
    for name, function in missing.items():
        if not hasattr(torch._C, name):
            setattr(torch._C, name, function)
