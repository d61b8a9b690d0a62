"""What this machine can really do: tried in a child process, so that a crash is an answer."""

from ultimate_embedder.devices.trials.features import FEATURES, CpuFeature
from ultimate_embedder.devices.trials.run import CHILD, TIMEOUT_S, Trials
from ultimate_embedder.devices.trials.trial import CardFacts, Forward, Outcome, TorchFacts, Trial

__all__ = [
    "CHILD",
    "FEATURES",
    "TIMEOUT_S",
    "CardFacts",
    "CpuFeature",
    "Forward",
    "Outcome",
    "TorchFacts",
    "Trial",
    "Trials",
]
