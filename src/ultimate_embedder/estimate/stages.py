"""How long the stages of a run take beside the passes: measured, from earlier runs, or assumed."""

from __future__ import annotations

from collections.abc import Sequence

from ultimate_embedder.history import StageRecord, stages
from ultimate_embedder.machine import processor_name
from ultimate_embedder.planned import PlannedSeconds
from ultimate_embedder.planning import Estimate, Range, stage_seconds

MEASURED = Range(0.7, 1.4)  # of what was measured while planning: the machine does other things too
ELSEWHERE = Range(0.5, 2.0)  # assumed: another host, against this one
START_S = Range(1.0, 20.0)
LOAD_MODEL_S = Range(1.0, 10.0)  # beside reading its files
READING = Range(100e6, 2e9)  # bytes per second, of the weights of a model
DOWNLOADING = Range(10e6, 100e6)
EXPORTING = Range(20e6, 300e6)
EXPORT_S = Range(0.05, 1.0)  # to begin one
STORE_S = Range(0.02, 0.5)  # files of a pass, synced
QDRANT = "qdrant"
SHARD_S = Range(1.0, 10.0)  # its engine is started in a process of its own


class StageTimes:
    """What is known of the stages; `here` if the run will be on this machine."""

    def __init__(self, records: Sequence[StageRecord], *, here: bool) -> None:
        self._records = records if here else ()
        self._here = here

    def starting(self) -> Estimate:
        """Locking, opening devices, finding models."""
        return self._known(stages.START, 1) or Estimate(START_S, "assumed")

    def downloading(self, size_bytes: int) -> Estimate:
        """Files of models."""
        return Estimate(
            Range(size_bytes / DOWNLOADING.high, size_bytes / DOWNLOADING.low), "assumed: 10 to 100 MB per second"
        )

    def loading_chunks(self, measured_s: float) -> Estimate:
        """As the plan has just done it."""
        return self._as_measured(measured_s)

    def counting_words(self, measured_s: float) -> Estimate:
        """As the plan has just done it, for BM25; a run stores the counts too."""
        counting = self._as_measured(measured_s)
        return Estimate(counting.seconds + STORE_S, f"{counting.basis}; storing is assumed")

    def _as_measured(self, measured_s: float) -> Estimate:
        spread = MEASURED if self._here else ELSEWHERE
        basis = "measured while planning" if self._here else "measured on this machine, another is assumed to be alike"
        return Estimate(Range(measured_s * spread.low, measured_s * spread.high), basis)

    def loading_model(self, model: str, dtype: str, file_bytes: int) -> Estimate:
        """The weights of a model, from disk to memory."""
        reading = Range(file_bytes / READING.high, file_bytes / READING.low)
        return self._known(stages.load_model(model, dtype), 1) or Estimate(LOAD_MODEL_S + reading, "assumed")

    def exporting(self, kind: str, points: int, size_bytes: int) -> Estimate:
        """One export."""
        writing = Range(size_bytes / EXPORTING.high, size_bytes / EXPORTING.low)
        assumed = writing + (SHARD_S if kind == QDRANT else EXPORT_S)
        return self._known(stages.export(kind), points) or Estimate(assumed, "assumed: 20 to 300 MB per second")

    def rest(self, chunks: int) -> Estimate | None:
        """Of a collection, beside all that has a name."""
        return self._known(stages.OTHER, chunks)

    def _known(self, stage: str, units: int) -> Estimate | None:
        return stage_seconds(self._records, stage, processor_name(), units)


def in_words(estimates: Sequence[Estimate]) -> PlannedSeconds:
    """The sum of some estimates, with all that they rest on."""
    seconds = sum((each.seconds for each in estimates), Range(0.0, 0.0))
    basis = "; ".join(dict.fromkeys(each.basis for each in estimates if each.seconds.high > 0))
    return PlannedSeconds(low=seconds.low, high=seconds.high, basis=basis)
