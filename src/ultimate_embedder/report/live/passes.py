"""The passes of a run, and what was reached of them."""

from __future__ import annotations

import itertools

from ultimate_embedder import events
from ultimate_embedder.report.live.device_use import Lessee
from ultimate_embedder.report.live.devices import MOST_DEVICES, span_of
from ultimate_embedder.report.live.pass_progress import PassProgress
from ultimate_embedder.report.live.recent import whole
from ultimate_embedder.report.live.rows import PassRow
from ultimate_embedder.report.live.sentences import shown

MOST_PASSES = 256

Reached = dict[tuple[str | None, str], float]
"""By collection and fingerprint of the pass."""


class Passes:
    """Folds what happens in passes; `reached` is what earlier runs came to."""

    def __init__(self, reached: Reached | None = None) -> None:
        self.left_out = 0
        self._before = reached or {}
        self._passes: dict[tuple[str | None, int], PassProgress] = {}

    def __call__(self, event: events.Event) -> None:
        """Take one event."""
        match event:
            case events.BatchEncoded():
                self._of(event).note_batch(event.rows, event.planned_rows, event.padded_tokens)
                self._encoded(event)
            case events.BatchesEncoded():
                # of many batches the mean is told: what was planned is known of single ones
                rows, tokens = (
                    whole(each) // max(1, whole(event.batches)) for each in (event.rows, event.padded_tokens)
                )
                self._of(event).note_batch(rows, rows, tokens)
                self._encoded(event)
            case events.WindowTokenized():
                self._of(event).tokenize(event.texts, event.tokens)
            case events.ModeChosen():
                for number, model in enumerate(itertools.islice(event.weights, MOST_PASSES)):
                    self._pass(event.collection, model, number)
            case events.PassStarted():
                self._started(event)
            case events.PassFinished():
                self._of(event).finish(event.timestamp)
            case events.VectorsFused():
                for each in self._of_collection(event.collection):
                    each.complete()
            case events.CollectionFinished():
                for each in self._of_collection(event.collection):
                    if each.state == "running":
                        each.finish(event.timestamp)
            case _:
                pass

    def rows(self, now: float) -> tuple[PassRow, ...]:
        """All passes at this moment."""
        return tuple(each.row(now) for each in self._passes.values())

    def at_work(self) -> set[Lessee]:
        """Those that have something to do, by collection and model."""
        return {(key[0], each.model) for key, each in self._passes.items() if each.has_work}

    def reached(self) -> Reached:
        """How far each has come, for a run that goes on with it."""
        now = {
            (key[0], each.fingerprint): each.share for key, each in self._passes.items() if each.fingerprint is not None
        }
        return dict(list((self._before | now).items())[-MOST_PASSES:])

    def _of(
        self,
        event: events.PassStarted
        | events.WindowTokenized
        | events.BatchEncoded
        | events.BatchesEncoded
        | events.PassFinished,
    ) -> PassProgress:
        return self._pass(event.collection, event.model, event.model_pass)

    def _of_collection(self, name: str | None) -> list[PassProgress]:
        return [each for key, each in self._passes.items() if key[0] == name]

    def _pass(self, collection: str | None, model: str, number: int) -> PassProgress:
        key = (collection, number)
        if key not in self._passes:
            if len(self._passes) >= MOST_PASSES:
                self._drop()
            self._passes[key] = PassProgress(collection, model, number)
        return self._passes[key]

    def _drop(self) -> None:
        """Forget the first pass that is over, or the first of all."""
        over = [key for key, each in self._passes.items() if each.state == "finished"]
        del self._passes[over[0] if over else next(iter(self._passes))]
        self.left_out += 1

    def _started(self, event: events.PassStarted) -> None:
        current = self._of(event)
        devices = tuple(map(shown, event.devices[:MOST_DEVICES]))
        # of an earlier run what is stored counts; one that begins with nothing begins at nothing
        before = self._before.get((event.collection, event.fingerprint), 0.0) if event.stored_texts > 0 else 0.0
        current.begin(event, devices, shown(event.dtype), max(current.share, before), event.timestamp)

    def _encoded(self, event: events.BatchEncoded | events.BatchesEncoded) -> None:
        self._of(event).note_device(shown(event.device))
        self._of(event).encode(event.texts, event.bad_rows, event.tokens, *span_of(event))
