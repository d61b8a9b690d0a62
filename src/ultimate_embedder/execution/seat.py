"""A model and the device that it works on: its weights are there, are streamed there, or wait on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from ultimate_embedder.devices import CpuDevice, Device, in_one_line
from ultimate_embedder.execution.ladder import WEIGHTS_BACK, Report
from ultimate_embedder.execution.placement import move
from ultimate_embedder.models import LayerStream, LoadedModel


class Seat:
    """Moves the weights of one worker's model; the worker's lock is held meanwhile."""

    def __init__(self, encoder: LoadedModel, device: Device, report: Report) -> None:
        self.encoder = encoder
        self.device = device
        self.moved = False
        """Whether it has left the device that it had at first."""
        self._report = report
        self._stream: LayerStream | None = None
        self._expected = False  # the weights are away on purpose: that they come back is no change of course

    @property
    def has_weights(self) -> bool:
        """Whether all weights are on the device."""
        return not self._streams and self.encoder.device == self.device.torch_device

    @property
    def _streams(self) -> bool:
        return self._stream is not None and self._stream.on_device

    def room_bytes(self) -> int:
        """What the model may hold of the device now, weights included."""
        now = self.device.hold_ceiling()
        mine = self.encoder.weight_bytes if self.has_weights else 0
        if self._stream is not None and not mine:
            mine = self._stream.device_bytes
        return now.ceiling_bytes - now.outside_bytes - max(0, now.allocated_bytes - mine)

    def bring_weights(self) -> bool:
        """Have all weights on the device, if it has room for them."""
        if self.has_weights:
            return True
        if self._stream is not None and self._stream.on_device:
            usable = self.device.hold_ceiling().usable_bytes + self._stream.device_bytes
            if self.encoder.weight_bytes > usable:
                return False
            self._stream.leave()
        if not move(self.encoder, self.device):
            return False
        if not self._expected:
            details = {"weight_bytes": self.encoder.weight_bytes}
            self._report(WEIGHTS_BACK, {"reason": f"{self.device.name} has room for them again", **details})
        self._expected = False
        return True

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """A forward with the layers' weights on the host; they stay there until all are wanted on the device."""
        if self._stream is None:
            self._stream = LayerStream(self.encoder.model, self.device)
        with self._stream.running():
            yield

    def take_weights(self, *, on_purpose: bool = False) -> bool:
        """Take the weights off the device; False if there were none. `on_purpose`: the next batch brings them back."""
        if not self.has_weights and not self._streams:
            return False
        self._leave()
        self._expected = on_purpose
        return True

    def move_away(self, refuges: Sequence[Device], on_cpu: Callable[[], LoadedModel]) -> Device | None:
        """Go to the first refuge with room, else to the CPU with another copy of the model; gives the refuge."""
        self.take_weights()
        self.close()
        refuge = self._find_refuge(refuges)
        if refuge is None:
            self.encoder = on_cpu()
        self.device, self.moved = refuge or CpuDevice(), True
        return refuge

    def _find_refuge(self, refuges: Sequence[Device]) -> Device | None:
        """Move the weights to the first refuge with room."""
        for refuge in refuges:
            try:
                if move(self.encoder, refuge):
                    return refuge
            except RuntimeError as error:
                if not refuge.is_lost(error):
                    raise
                refuge.retire(in_one_line(error))
                return None  # a part of the weights is lost with it; the CPU has weights of its own
        return None

    def close(self) -> None:
        """Drop what was made for streaming: pinned memory on the host, buffers and hooks."""
        if self._stream is None:
            return
        if self.device.lost is not None:
            self._stream.abandon()
        else:
            self._stream.close()
        self._stream = None

    def _leave(self) -> None:
        if self._stream is not None:
            self._stream.leave()  # it has the weights of the layers on the host: nothing is copied
        else:
            self.encoder.model.to("cpu")
