"""Code that a model names and that must not run: it leaves a file where the environment says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

MARKER = "ATTACK_MARKER"
LEAVE_MARKER = f"import os, pathlib\npathlib.Path(os.environ[{MARKER!r}]).write_text('ran')\n"


def leave_marker() -> None:
    Path(os.environ[MARKER]).write_text("ran")


class Evil(torch.nn.Module):
    """A module, a tokenizer or an activation that leaves a marker when it is made or loaded."""

    def __init__(self) -> None:
        super().__init__()
        leave_marker()

    @classmethod
    def load(cls, *arguments: Any, **options: Any) -> Evil:
        return cls()

    def forward(self, features: Any) -> Any:
        return features


class Payload:
    """Leaves a marker when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return leave_marker, ()
