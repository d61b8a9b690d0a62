"""Where the doctor looks. Tests look elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ultimate_embedder.config import HubAccess, hub_access, known_environment
from ultimate_embedder.devices import ALLOCATOR_VARIABLES, CHILD, TIMEOUT_S, VISIBLE_VARIABLE
from ultimate_embedder.report.doctor.check import Check
from ultimate_embedder.terminal import valid_unicode, without_user


@dataclass(frozen=True)
class Place:
    """A machine: its files, the settings of this process, and the module that tries things in a child process."""

    output: Path = Path()
    access: HubAccess = field(default_factory=hub_access)
    environment: Mapping[str, str] = field(
        default_factory=lambda: known_environment([*ALLOCATOR_VARIABLES, VISIBLE_VARIABLE])
    )
    home: Path = field(default_factory=Path.home)
    cpu_info: Path = Path("/proc/cpuinfo")
    cgroup: Path = Path("/sys/fs/cgroup")
    nvidia: Path = Path("/proc/driver/nvidia")
    kaggle: Path = Path("/kaggle")
    trials: str = CHILD
    timeout_s: float = TIMEOUT_S

    @property
    def is_kaggle(self) -> bool:
        """Whether this is a Kaggle notebook."""
        return self.kaggle.is_dir() or "KAGGLE_KERNEL_RUN_TYPE" in self.environment

    def without_private(self, check: Check) -> Check:
        """The check without the home folder, the user's name in paths, and passwords in URLs."""
        return replace(check, found=self._shown(check.found), remedy=self._shown(check.remedy))

    def _shown(self, text: str) -> str:
        text = without_user(valid_unicode(text))
        if len(self.home.parts) > 1:  # not if it is the root
            text = re.sub(rf"{re.escape(os.fspath(self.home))}(?![\w.-])", "~", text)
            text = re.sub(rf"(?<=[/\\]){re.escape(self.home.name)}(?![\w.-])", "USER", text)
        return text
