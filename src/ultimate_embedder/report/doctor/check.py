"""What was looked at, and what was found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from ultimate_embedder._version import __version__

State = Literal["ok", "warning", "problem"]
SCHEMA = 1


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `remedy` says what to type or to choose, if anything."""

    name: str
    state: State
    found: str
    remedy: str = ""


@dataclass(frozen=True)
class Examination:
    """All checks, in the order in which they are shown."""

    checks: tuple[Check, ...]

    @property
    def problems(self) -> tuple[Check, ...]:
        """What keeps the program from working, or from using what is there."""
        return self._of("problem")

    @property
    def warnings(self) -> tuple[Check, ...]:
        """What is worth a look."""
        return self._of("warning")

    def _of(self, state: State) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.state == state)

    def as_json(self) -> str:
        """For bug reports: names of checks and of fields stay as they are from version to version."""
        checks = [asdict(check) for check in self.checks]
        return json.dumps({"schema": SCHEMA, "ultimate_embedder": __version__, "checks": checks}, indent=2)
