"""Run a model whose layers' weights stay on the host: each layer is copied to the device just before it runs.

It works on any module with repeated layers (`repeated_layers`). The copies on the host are made once, in pinned memory
as far as the host can spare it, and kept until the stream is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultimate_embedder.machine import available_bytes
from ultimate_embedder.models.layers import NotApplicableError, repeated_layers
from ultimate_embedder.types import ModelDevice

if TYPE_CHECKING:
    import torch

SHELLS = 2  # one layer computes while the next one is copied
PINNED_SHARE = 0.25  # of the host's available memory: what is pinned cannot be swapped, and others need memory too


class LayerStream:
    """Replaces the weights of a layer by buffers on the device (shells) while the layer runs.

    From the first `running` on, the device holds `SHELLS` layers instead of all, and all weights that belong to no
    layer; so it stays until `leave`, which takes everything off the device, or `close`, which also unpins.
    """

    def __init__(self, model: torch.nn.Module, device: ModelDevice, pinned_bytes: int | None = None) -> None:
        """`pinned_bytes` is the most host memory to pin; by default a share of what is available."""
        if not device.has_ceiling:
            raise NotApplicableError("the device is the host, so there is nothing to stream")
        self._layers = repeated_layers(model)
        self._device = device
        self._slots = [_slots(layer) for layer in self._layers]
        streamed = {id(slot.holder) for slots in self._slots for slot in slots}
        self._others = [slot for slot in _slots(model) if id(slot.holder) not in streamed]
        self._host: list[list[torch.Tensor]] = []  # the weights of each layer
        self._pinned_left = int(available_bytes() * PINNED_SHARE) if pinned_bytes is None else pinned_bytes
        self._shells: list[list[torch.Tensor]] = []
        self._hooks: list[Any] = []
        self._fetched: set[int] = set()

    @property
    def on_device(self) -> bool:
        """Whether the model is on the device in this way."""
        return bool(self._shells)

    @property
    def device_bytes(self) -> int:
        """What it holds there."""
        if not self.on_device:
            return 0
        shells = sum(tensor.nbytes for shell in self._shells for tensor in shell)
        return shells + sum(slot.tensor.nbytes for slot in self._others)

    @contextlib.contextmanager
    def running(self) -> Iterator[int]:
        """A forward of the model in this way; yields the number of layers. After an error the next one can begin."""
        import torch

        if not self.on_device:
            with torch.no_grad():
                self._begin()
        try:
            yield len(self._layers)
        except BaseException:
            self._recover()
            raise

    def leave(self) -> None:
        """Take everything off the device: the weights are on the host, whether they were streamed or all there."""
        import torch

        if self.on_device:
            self._recover()
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._shells = [], []
        with torch.no_grad():
            for number, tensors in enumerate(self._host):
                self._fill(number, tensors)
            for slots in (self._others, *self._slots[len(self._host) :]):
                for slot in slots:
                    slot.fill(slot.tensor.to("cpu"))

    def close(self) -> None:
        """End it and unpin the weights; a model that is wholly on the device stays there."""
        if self.on_device:
            self.leave()
        self._host = []
        for slots in self._slots:
            for slot in slots:
                if slot.tensor.is_pinned():
                    slot.fill(slot.tensor.clone())

    def abandon(self) -> None:
        """End it without asking the device, which is lost; the model is of no use any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._shells, self._host = [], [], []

    def _begin(self) -> None:
        import torch

        device = self._device
        try:
            self._take_layers_off()
            for slot in self._others:
                slot.fill(slot.tensor.to(device.torch_device))
            shells = min(SHELLS, len(self._layers))
            self._stream = device.side_stream()
            self._arrived = [device.event() for _ in range(shells)]
            self._computed = [device.event() for _ in range(shells)]
            like = self._host[0]
            self._shells = [[torch.empty_like(t, device=device.torch_device) for t in like] for _ in range(shells)]
        except BaseException:
            self.leave()  # what did not fit must not stay in part
            raise
        for number, layer in enumerate(self._layers):
            self._hooks.append(layer.register_forward_pre_hook(lambda *_, number=number: self._before(number)))
            self._hooks.append(layer.register_forward_hook(lambda *_, number=number: self._after(number)))

    def _take_layers_off(self) -> None:
        """Layer by layer, so that neither the host nor the device holds much twice."""
        for number, slots in enumerate(self._slots):
            if number == len(self._host):
                self._host.append(self._on_host([slot.tensor for slot in slots]))
            self._fill(number, self._host[number])

    def _on_host(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The weights of a layer, pinned if there is enough left to pin all of them; else copies of them wait."""
        needed = sum(_pinned_bytes(tensor) for tensor in tensors)
        if needed > self._pinned_left:
            return [tensor.to("cpu") for tensor in tensors]
        self._pinned_left -= needed
        return [self._device.pin(tensor.to("cpu")) for tensor in tensors]

    def _recover(self) -> None:
        """All weights of layers are the host's again, as before a forward."""
        # after a failed forward a copy may still be running: its memory must not be reused before it has ended
        self._device.current_stream().wait_stream(self._stream)
        self._fetched.clear()
        for number, tensors in enumerate(self._host):
            self._fill(number, tensors)

    def _before(self, number: int) -> None:
        if number not in self._fetched:
            self._fetch(number)
        self._device.current_stream().wait_event(self._arrived[self._shell(number)])
        self._fill(number, self._shells[self._shell(number)])
        if number + 1 < len(self._layers):
            self._fetch(number + 1)

    def _after(self, number: int) -> None:
        self._computed[self._shell(number)].record(self._device.current_stream())
        self._fetched.discard(number)
        self._fill(number, self._host[number])

    def _fetch(self, number: int) -> None:
        shell = self._shell(number)
        self._stream.wait_event(self._computed[shell])  # the layer that used this shell has been computed
        with self._device.use_stream(self._stream):
            for there, host in zip(self._shells[shell], self._host[number], strict=True):
                there.copy_(host, non_blocking=host.is_pinned())
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


def _pinned_bytes(tensor: torch.Tensor) -> int:
    """What torch takes to pin a tensor: a power of two."""
    return 1 << max(0, tensor.nbytes - 1).bit_length()
