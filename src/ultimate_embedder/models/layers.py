"""Run a forward in less memory: the feed-forward in pieces, or the layers' weights streamed one by one.

Both work on any module and restore it afterwards. They find the repeated layers of a model by their shapes, not by its
name, and raise `NotApplicableError` if there are none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultimate_embedder.errors import UltimateEmbedderError
from ultimate_embedder.types import ModelDevice

if TYPE_CHECKING:
    import torch

CHUNK_TOKENS = 64
SHELLS = 2  # one layer computes while the next one is copied


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


@contextlib.contextmanager
def streamed_layers(model: torch.nn.Module, device: ModelDevice) -> Iterator[int]:
    """Keep the layers' weights on the host and copy each to the device just before it runs.

    The device holds `SHELLS` layers instead of all; the next one is copied on a side stream while one computes.
    Afterwards the model is back on its device, or on the host if it no longer fits there.
    """
    import torch

    if not device.has_ceiling:
        raise NotApplicableError("the device is the host, so there is nothing to stream")
    layers = repeated_layers(model)
    before = next(model.parameters()).device
    with contextlib.ExitStack() as afterwards, torch.no_grad():
        afterwards.callback(_settle, model, device, was_there=before == device.torch_device)
        streamer = _Streamer(model, layers, device)
        afterwards.callback(streamer.detach)
        streamer.attach()
        yield len(layers)


def _settle(model: torch.nn.Module, device: ModelDevice, *, was_there: bool) -> None:
    """Move a model back to the device; to the host if it was not on the device or no longer fits."""
    for attempt in range(2 if was_there else 0):
        if attempt:
            device.release_cache()
        try:
            model.to(device.torch_device)
        except RuntimeError as error:
            if not device.is_out_of_memory(error):
                raise
            error.__traceback__ = None  # it references the allocated tensors
        else:
            return
    model.to("cpu")
    if was_there:
        device.release_cache()


class _Streamer:
    """Replaces the weights of a layer by buffers on the device (shells) while the layer runs."""

    def __init__(self, model: torch.nn.Module, layers: list[torch.nn.Module], device: ModelDevice) -> None:
        import torch

        self._layers = layers
        self._device = device
        self._slots = [_slots(layer) for layer in layers]
        self._host = [[device.pin(slot.tensor.to("cpu", copy=True)) for slot in slots] for slots in self._slots]
        for number in range(len(layers)):
            self._fill(number, self._host[number])
        streamed = {id(slot.holder) for slots in self._slots for slot in slots}
        for slot in _slots(model):
            if id(slot.holder) not in streamed:
                slot.fill(slot.tensor.to(device.torch_device))
        device.release_cache()
        shells = min(SHELLS, len(layers))
        self._shells = [[torch.empty_like(t, device=device.torch_device) for t in self._host[0]] for _ in range(shells)]
        self._stream = device.side_stream()
        self._arrived = [device.event() for _ in range(shells)]
        self._computed = [device.event() for _ in range(shells)]
        self._fetched: set[int] = set()
        self._hooks: list[Any] = []

    def attach(self) -> None:
        """Register hooks that copy the weights of a layer before it runs and restore them afterwards."""
        for number, layer in enumerate(self._layers):
            self._hooks.append(layer.register_forward_pre_hook(lambda *_, number=number: self._begin(number)))
            self._hooks.append(layer.register_forward_hook(lambda *_, number=number: self._end(number)))

    def detach(self) -> None:
        """Remove the hooks, restore the weights on the host, and free the buffers on the device."""
        for hook in self._hooks:
            hook.remove()
        # after a failed forward a copy may still be running: its memory must not be reused before it has ended
        self._device.current_stream().wait_stream(self._stream)
        for number, tensors in enumerate(self._host):
            self._fill(number, tensors)
        self._shells.clear()

    def _begin(self, number: int) -> None:
        if number not in self._fetched:
            self._fetch(number)
        self._device.current_stream().wait_event(self._arrived[self._shell(number)])
        self._fill(number, self._shells[self._shell(number)])
        if number + 1 < len(self._layers):
            self._fetch(number + 1)

    def _end(self, number: int) -> None:
        self._computed[self._shell(number)].record(self._device.current_stream())
        self._fetched.discard(number)
        self._fill(number, self._host[number])

    def _fetch(self, number: int) -> None:
        shell = self._shell(number)
        self._stream.wait_event(self._computed[shell])  # the layer that used this shell has been computed
        with self._device.use_stream(self._stream):
            for there, host in zip(self._shells[shell], self._host[number], strict=True):
                there.copy_(host, non_blocking=True)
        self._arrived[shell].record(self._stream)
        self._fetched.add(number)

    def _shell(self, number: int) -> int:
        return number % len(self._shells)

    def _fill(self, number: int, tensors: list[torch.Tensor]) -> None:
        for slot, tensor in zip(self._slots[number], tensors, strict=True):
            slot.fill(tensor)


@dataclass(frozen=True)
class _Slot:
    """A parameter or a buffer of a module."""

    holder: dict[str, Any]
    name: str
    is_parameter: bool

    @property
    def tensor(self) -> torch.Tensor:
        tensor: torch.Tensor = self.holder[self.name]
        return tensor.detach()

    def fill(self, tensor: torch.Tensor) -> None:
        import torch

        # replaced, as a parameter cannot be moved to another device type
        self.holder[self.name] = torch.nn.Parameter(tensor, requires_grad=False) if self.is_parameter else tensor


def _slots(layer: torch.nn.Module) -> list[_Slot]:
    slots = []
    for module in layer.modules():
        for holder, is_parameter in ((module._parameters, True), (module._buffers, False)):
            slots += [_Slot(holder, name, is_parameter) for name, tensor in holder.items() if tensor is not None]
    return slots


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
