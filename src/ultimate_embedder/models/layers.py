"""The repeated layers of a model, and how to run their feed-forward in less memory: in pieces.

It works on any module and restores it afterwards. The layers are found by their shapes, not by the model's name;
`NotApplicableError` is raised if there are none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import UltimateEmbedderError

if TYPE_CHECKING:
    import torch

CHUNK_TOKENS = 64


class NotApplicableError(UltimateEmbedderError):
    """A mitigation does not work for this model."""


@contextlib.contextmanager
def where_applicable(mitigation: AbstractContextManager[Any]) -> Iterator[None]:
    """Use a mitigation within the block; do without it if it does not work for the model."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(NotApplicableError):
            stack.enter_context(mitigation)
        yield


def repeated_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a transformer: the largest list of modules of one type with weights of the same shapes."""
    import torch

    best: list[torch.nn.Module] = []
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) > 1:
            layers = list(module)
            if _alike(layers) and _bytes(layers) > _bytes(best):
                best = layers
    if not best:
        raise NotApplicableError("the model has no repeated layers")
    return best


@contextlib.contextmanager
def few_layers(model: torch.nn.Module, count: int = 2) -> Iterator[None]:
    """Remove all but the first layers: enough to predict the memory of a forward, as each layer needs the same."""
    import torch

    try:
        layers = repeated_layers(model)
    except NotApplicableError:
        yield
        return
    owner = next(
        module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and module[0] is layers[0]
    )
    everything = dict(owner._modules)
    try:
        for name in list(everything)[count:]:
            del owner._modules[name]
        yield
    finally:
        owner._modules.clear()
        owner._modules.update(everything)


@contextlib.contextmanager
def chunked_feed_forward(model: torch.nn.Module, tokens: int = CHUNK_TOKENS) -> Iterator[int]:
    """Run every feed-forward on a few tokens at a time; yields the number of feed-forwards found.

    The result is the same, as a feed-forward processes each token independently.
    """
    undo: list[Callable[[], None]] = []
    try:
        for layer in repeated_layers(model):
            mlp = getattr(layer, "mlp", None)
            inner, outer = getattr(layer, "intermediate", None), getattr(layer, "output", None)
            if mlp is not None:
                undo.append(_replace_forward(mlp, _in_pieces(mlp.forward, tokens)))
            elif inner is not None and outer is not None:
                undo.append(_replace_forward(outer, _in_pieces(_joined(inner.forward, outer.forward), tokens)))
                undo.append(_replace_forward(inner, lambda hidden: hidden))
        if not undo:
            raise NotApplicableError("the model's layers have no feed-forward of a known form")
        yield len(undo)
    finally:
        for put_back in reversed(undo):
            put_back()


def _alike(layers: list[torch.nn.Module]) -> bool:
    def shape(layer: torch.nn.Module) -> list[Any]:
        return [(name, tensor.shape, tensor.dtype) for name, tensor in layer.state_dict().items()]

    return len({type(layer) for layer in layers}) == 1 and all(shape(layer) == shape(layers[0]) for layer in layers)


def _bytes(layers: list[torch.nn.Module]) -> int:
    return sum(tensor.nbytes for layer in layers for tensor in layer.parameters())


def _joined(inner: Callable[..., Any], outer: Callable[..., Any]) -> Callable[..., Any]:
    return lambda hidden, residual: outer(inner(hidden), residual)


def _in_pieces(forward: Callable[..., Any], tokens: int) -> Callable[..., Any]:
    def run(*tensors: torch.Tensor) -> torch.Tensor:
        import torch

        flat = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
        out = torch.empty_like(flat[0])
        for start in range(0, len(out), tokens):
            out[start : start + tokens] = forward(*(tensor[start : start + tokens] for tensor in flat))
        return out.view(tensors[0].shape)

    return run


def _replace_forward(module: Any, forward: Callable[..., Any]) -> Callable[[], None]:
    module.forward = forward
    return lambda: delattr(module, "forward")
