"""The search for waits that `mutations.py` removes."""

from __future__ import annotations

from pathlib import Path

from tests.simulated.mutations import PRODUCT, PROJECT, all_mutations, find_mutations

SOURCE = '''
class Copier:
    def copy(self, there, host):
        """Not a wait: x.record(y)."""
        there.copy_(host, non_blocking=True)
        self.done.record(
            self.stream
        )
        self.telemetry.record("copied", rows=3)

    def wait(self):
        return self.done.synchronize() or [event.synchronize() for event in self.others]
'''


def test_every_wait_is_removed_once_and_each_copy_before_one_is_moved_behind_it() -> None:
    found = list(find_mutations(PRODUCT / "copier.py", SOURCE))
    assert [str(mutation) for mutation in found] == [
        "copier.py: Copier.copy without self.done.record(self.stream)",
        "copier.py: Copier.copy, copy after self.done.record(self.stream)",
        "copier.py: Copier.wait without self.done.synchronize()",
        "copier.py: Copier.wait without event.synchronize()",
    ]
    removed, moved, first, second = (mutation.source for mutation in found)
    assert removed == SOURCE.replace("self.done.record(\n            self.stream\n        )", "None")
    copy, record = "        there.copy_(host, non_blocking=True)\n", "        )\n"
    assert moved == SOURCE.replace(copy, "").replace(record, record + copy)
    assert "return None or [event.synchronize() for" in first
    assert "return self.done.synchronize() or [None for" in second


def test_the_waits_of_the_product_are_found() -> None:
    assert {mutation.path for mutation in all_mutations(PROJECT)} >= {
        PRODUCT / Path("devices/accelerator.py"),
        PRODUCT / Path("models/streaming.py"),
    }
