"""What the program computes on."""

from ultimate_embedder.devices.base import Device
from ultimate_embedder.devices.open import open_devices

__all__ = ["Device", "open_devices"]
